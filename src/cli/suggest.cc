#include "cli/suggest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace argent::cli {
namespace {

// Letters to insert, remove, replace or swap with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t(0));
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

std::string closest_name(const CLI::App& app, std::string_view word) {
  word = word.substr(0, std::min(word.find('='), size_t(64)));
  std::vector<std::string> names;
  if (word.starts_with("-")) {
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(sub->get_name());
  }
  std::string best;
  size_t least = word.size() / 3 + 1;  // more changes than this are another word
  for (const std::string& name : names) {
    const bool begins = word.size() >= 4 && name.starts_with(word);
    const size_t distance = begins ? 1 : edit_distance(word, name);
    if (distance <= least && (best.empty() || distance < least)) best = name, least = distance;
  }
  return best;
}

}  // namespace argent::cli
