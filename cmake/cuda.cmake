# libargent_cuda.so, the CUDA part that the program opens at run time (docs/decisions/0017-cuda-part.md), and its tests.
# nvcc is called by custom commands: the only language option that is the same for every CMake from 3.25 and nvcc from 12.8.
set(ARGENT_CUDA AUTO CACHE STRING "AUTO: with the CUDA part where nvcc is found; ON: or stop; OFF: without it")
set(ARGENT_CUDA_FLAGS "" CACHE STRING "more options of nvcc, such as -lineinfo, with semicolons between")

# argent_cuda_version(variable): the interface's version, of what both sides compile. Configuring runs again when one of
# these files changes.
function(argent_cuda_version variable)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/base/*.h ${CMAKE_SOURCE_DIR}/src/quant/*.h ${CMAKE_SOURCE_DIR}/src/quant/*.def
    ${CMAKE_SOURCE_DIR}/src/graph/*.h ${CMAKE_SOURCE_DIR}/src/graph/*.def ${CMAKE_SOURCE_DIR}/src/sample/*.h
    ${CMAKE_SOURCE_DIR}/src/backends/backend.h ${CMAKE_SOURCE_DIR}/src/backends/cuda/part.h)
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  set(text "${PROJECT_VERSION} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}} ${fmt_VERSION}")
  foreach(header ${headers})
    file(SHA256 ${header} hash)
    string(APPEND text " ${hash}")
  endforeach()
  string(SHA256 hash "${text}")
  string(SUBSTRING ${hash} 0 7 hash)
  set(${variable} 0x1${hash} PARENT_SCOPE)  # never 0
endfunction()

set(why "")
if(APPLE OR ARGENT_FUZZ OR ARGENT_SANITIZE OR CMAKE_CROSSCOMPILING OR NOT TARGET argent)
  set(why "this kind of build has none")
elseif(NOT ARGENT_CUDA)
  set(why "ARGENT_CUDA is ${ARGENT_CUDA}")
else()
  find_package(CUDAToolkit 12.8 QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE OR NOT TARGET CUDA::cudart_static)
    set(why "nvcc 12.8 or later was not found")
  elseif(NOT DEFINED ARGENT_NVCC_WORKS)
    # nvcc refuses compilers that are newer than itself: found out once, with what the kernels are compiled with.
    file(WRITE ${CMAKE_BINARY_DIR}/cuda/probe.cu "#include <concepts>\nstatic_assert(std::same_as<int, int>);\n")
    execute_process(COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -ccbin ${CMAKE_CXX_COMPILER} -c ${CMAKE_BINARY_DIR}/cuda/probe.cu
      -o ${CMAKE_BINARY_DIR}/cuda/probe.o RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    string(COMPARE EQUAL "${failed}" 0 works)
    set(ARGENT_NVCC_WORKS ${works} CACHE INTERNAL "nvcc takes this C++ compiler")
  endif()
  if(NOT why AND NOT ARGENT_NVCC_WORKS)
    set(why "nvcc ${CUDAToolkit_VERSION} does not take ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  endif()
  if(why AND NOT ARGENT_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "ARGENT_CUDA is ${ARGENT_CUDA}, but ${why}")
  endif()
endif()
set(cuda ${CMAKE_SOURCE_DIR}/src/backends/cuda)
if(why)
  set_source_files_properties(${cuda}/open.cc PROPERTIES COMPILE_DEFINITIONS ARGENT_CUDA_PART_VERSION=0)
  if(NOT APPLE)
    message(STATUS "without the CUDA part: ${why}")
  endif()
  return()
endif()

# Without a wish, for the GPUs of this machine; without one, for the H100 and H200.
if(NOT ARGENT_CUDA_ARCHS)
  set(archs 90a)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE seen ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND seen MATCHES "^[0-9]+\\.[0-9]")
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" seen "${seen}")
    list(TRANSFORM seen REPLACE "\\." "")
    list(TRANSFORM seen REPLACE "^90$" "90a")
    list(FILTER seen EXCLUDE REGEX "^[1-7][0-9]$")  # the kernels begin at 8.0
    list(REMOVE_DUPLICATES seen)
    list(SORT seen COMPARE NATURAL)
    if(seen)
      set(archs ${seen})
    endif()
  endif()
  set(ARGENT_CUDA_ARCHS "${archs}" CACHE STRING "what nvcc compiles for: 90a;100" FORCE)
endif()
set(gencode "")
foreach(arch ${ARGENT_CUDA_ARCHS})
  list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
# PTX of the last for devices to come (runs_on of part.h has the same rule).
list(GET ARGENT_CUDA_ARCHS -1 last)
if(last MATCHES "^[0-9]+$" AND last GREATER_EQUAL 90)
  list(APPEND gencode -gencode arch=compute_${last},code=compute_${last})
endif()
string(REPLACE ";" "," archs "${ARGENT_CUDA_ARCHS}")
argent_cuda_version(version)
message(STATUS "with the CUDA part: nvcc ${CUDAToolkit_VERSION} for ${archs}, interface ${version}")

set(nvcc_options -std=c++20 -O3 ${gencode} --compiler-options=-fPIC,-fvisibility=hidden -I ${CMAKE_SOURCE_DIR}/src ${ARGENT_CUDA_FLAGS})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND nvcc_options -ccbin ${CMAKE_CXX_COMPILER})
endif()
if(CMAKE_BUILD_TYPE MATCHES "Rel")
  list(APPEND nvcc_options -DNDEBUG)
endif()
file(GLOB kernels CONFIGURE_DEPENDS ${cuda}/part/kernels/*.cu)
foreach(kernel ${kernels})
  get_filename_component(name ${kernel} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  # Rebuilt with the headers that it includes, by nvcc's own list.
  add_custom_command(OUTPUT ${object}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} ${nvcc_options} -MD -MF ${object}.d -MT ${object} -c ${kernel} -o ${object}
    DEPENDS ${kernel} DEPFILE ${object}.d COMMENT "Building CUDA object cuda/${name}.o" VERBATIM COMMAND_EXPAND_LISTS)
  list(APPEND objects ${object})
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)

file(GLOB host CONFIGURE_DEPENDS ${cuda}/part/*.cc)
add_library(argent_cuda_part_host OBJECT ${host})
set_target_properties(argent_cuda_part_host PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
  UNITY_BUILD OFF)  # its files have local functions of equal names
target_include_directories(argent_cuda_part_host PRIVATE src ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(argent_cuda_part_host PRIVATE fmt::fmt nlohmann_json::nlohmann_json)
target_compile_definitions(argent_cuda_part_host PRIVATE ARGENT_CUDA_PART_VERSION=${version} ARGENT_CUDA_ARCHS="${archs}")
add_library(argent_cuda_part MODULE $<TARGET_OBJECTS:argent_cuda_part_host> ${objects})
set_target_properties(argent_cuda_part PROPERTIES OUTPUT_NAME argent_cuda PREFIX lib SUFFIX .so LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
  LINKER_LANGUAGE CXX)
target_link_libraries(argent_cuda_part PRIVATE CUDA::cudart_static fmt::fmt Threads::Threads)
# The rooms' functions are the program's; cudart's are nobody else's.
target_link_options(argent_cuda_part PRIVATE -Wl,-z,undefs -Wl,--exclude-libs,ALL)
set_source_files_properties(${cuda}/open.cc PROPERTIES COMPILE_DEFINITIONS ARGENT_CUDA_PART_VERSION=${version})

# argent_with_cuda(target): a program that opens the part has all of its rooms' functions, and exports them.
function(argent_with_cuda target)
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON
    LINK_LIBRARY_OVERRIDE "WHOLE_ARCHIVE,argent_base,argent_quant,argent_graph,argent_sample")
  add_dependencies(${target} argent_cuda_part)
endfunction()
argent_with_cuda(argent)

# bench/cuda is one program that times the products on a GPU; on demand: ninja bench_cuda.
set(bench_object ${CMAKE_BINARY_DIR}/cuda/bench_products.o)
add_custom_command(OUTPUT ${bench_object}
  COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} ${nvcc_options} -MD -MF ${bench_object}.d -MT ${bench_object} -c ${CMAKE_SOURCE_DIR}/bench/cuda/products.cu -o ${bench_object}
  DEPENDS ${CMAKE_SOURCE_DIR}/bench/cuda/products.cu DEPFILE ${bench_object}.d COMMENT "Building CUDA object cuda/bench_products.o" VERBATIM COMMAND_EXPAND_LISTS)
set(product_objects ${objects})
list(FILTER product_objects INCLUDE REGEX "/(product[^/]*|relay)\\.o$")
add_executable(bench_cuda EXCLUDE_FROM_ALL ${bench_object} ${product_objects})
set_target_properties(bench_cuda PROPERTIES OUTPUT_NAME argent_bench_cuda LINKER_LANGUAGE CXX)
target_link_libraries(bench_cuda PRIVATE argent_quant CUDA::cudart_static)

if(ARGENT_TESTS)
  file(GLOB cuda_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda/*_test.cc)
  add_executable(test_cuda ${cuda_tests})
  target_include_directories(test_cuda PRIVATE src tests)
  target_compile_options(test_cuda PRIVATE -O1)  # most of their build is templates of gtest
  target_compile_definitions(test_cuda PRIVATE ARGENT_CUDA_PART_VERSION=${version})
  target_link_libraries(test_cuda PRIVATE argent_engine argent_reference GTest::gtest_main nlohmann_json::nlohmann_json)
  argent_with_cuda(test_cuda)
  add_test(NAME cuda COMMAND test_cuda)

  # The part's host side on a runtime without a GPU (tests/cuda_host/fake_cudart.h).
  file(GLOB host_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda_host/*.cc)
  add_executable(test_cuda_host ${host_tests} $<TARGET_OBJECTS:argent_cuda_part_host> ${objects})
  set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/cuda_host/fake_cudart.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(test_cuda_host PRIVATE src tests ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(test_cuda_host PRIVATE -O1)  # most of their build is templates of gtest
  target_compile_definitions(test_cuda_host PRIVATE ARGENT_CUDA_PART_VERSION=${version})
  target_link_libraries(test_cuda_host PRIVATE argent_engine GTest::gtest_main nlohmann_json::nlohmann_json)
  add_test(NAME cuda_host COMMAND test_cuda_host)
endif()
