// What a mistyped flag or command was meant to be.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace argent::cli {

// The long flag or subcommand of `app` that is closest to `word`, as "--ctx"; "" when none is close.
std::string closest_name(const CLI::App& app, std::string_view word);

}  // namespace argent::cli
