// The program's side of the CUDA part: finds it, opens it once, on first use, and says why not. No CUDA headers here.
#include <dlfcn.h>

#include <filesystem>

#include "backends/cuda/part.h"

namespace argent {
namespace {

// The part beside the program or, of a program in bin, where packages put it; empty: neither.
std::string part_path() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const std::filesystem::path folder = program.parent_path();
  if (std::filesystem::exists(folder / cuda::kPartFile, error)) return (folder / cuda::kPartFile).string();
  const std::filesystem::path packaged = folder.parent_path() / "lib/argent" / cuda::kPartFile;
  if (folder.filename() == "bin" && std::filesystem::exists(packaged, error)) return packaged.string();
  return "";
}

Result<const cuda::Part*> open_part() {
  const std::string path = part_path();
  if (path.empty())
    return fail(Code::unsupported, "{} is not beside the program; builds where nvcc is found have it", cuda::kPartFile);
  // Never closed: backends of it live as long as they like.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    const std::string_view text = why ? why : "no reason given";
    // Names that the program lacks: both sides compile one set of headers, or the part is another build's.
    if (text.find("undefined symbol") != text.npos)
      return fail(Code::unsupported, "{} is of another build ({})", cuda::kPartFile, text);
    return fail(Code::unsupported, "{} cannot be opened: {}", cuda::kPartFile, text);
  }
  const auto entry = reinterpret_cast<cuda::PartEntry*>(dlsym(library, cuda::kPartEntry));
  const cuda::Part* part = entry ? entry(cuda::kPartVersion) : nullptr;
  if (!part) return fail(Code::unsupported, "{} is of another build", path);
  return part;
}

const Result<const cuda::Part*>& part() {
  static const Result<const cuda::Part*> opened = open_part();
  return opened;
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options) {
  auto made = part() ? (*part())->make_backend(options) : Result<std::unique_ptr<Backend>>(part().error());
  if (!made) return fail(made.error().code, "--device cuda:{}: {}", options.index, made.error().message);
  return made;
}

Result<std::vector<DeviceListing>> list_cuda_devices() {
  if (!part()) return part().error();
  return (*part())->list_devices();
}

}  // namespace argent
