// Random matrices of every format.
#pragma once

#include <string>
#include <vector>

#include "metal/cases.h"
#include "quant/formats.h"

namespace argent::metal {

// As in names of kernels: q4_k.
std::string name_of(Format format);

// Rows of cols elements: random bits, with scales of a sensible size; formats without blocks have elements in [-1, 1).
std::vector<uint8_t> random_rows(Format format, uint64_t rows, uint64_t cols, Numbers& numbers);

}  // namespace argent::metal
