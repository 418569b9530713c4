// Models by their shape alone: a GGUF file's header, with address space where its tensors would be.
#pragma once

#include "gguf/gguf.h"
#include "metal/recording_device.h"

namespace argent::metal {

std::vector<std::string_view> shape_names();

struct ShapedFile {
  AddressSpace space;
  std::unique_ptr<gguf::File> file;
};
// not_found: no shape of that name.
Result<ShapedFile> make_shape(std::string_view name);

}  // namespace argent::metal
