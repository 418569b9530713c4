#include "base/result.h"

namespace argent {

int exit_code(Code code) {
  switch (code) {
    case Code::invalid:
      return 2;
    case Code::unsupported:
      return 3;
    case Code::not_found:
      return 4;
    case Code::io:
      return 5;
    case Code::out_of_memory:
      return 6;
    case Code::cancelled:
      return 130;
    case Code::internal:
      return 70;
  }
  return 70;
}

}  // namespace argent
