# On a Mac the host layer over Apple's Metal. Elsewhere the Metal kernels compiled for the emulator, and their tests
# (docs/metal.md). Twice: fast, and with every load, store, index and shift checked. The emulator needs g++: its
# -fsanitize=thread is what the checks hang on.
include(${CMAKE_SOURCE_DIR}/cmake/metal_apple.cmake)
set(metal_portable argent_quant)
if(TARGET argent_backends_metal)
  set(metal_portable argent_backends_metal)
endif()
if(APPLE)
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  argent_metal_apple(${CMAKE_SOURCE_DIR})
  if(TARGET argent_backends_metal)
    target_link_libraries(argent_backends_metal PUBLIC argent_backends_metal_apple)
  endif()
  if(ARGENT_TESTS)
    argent_metal_apple_tests(${CMAKE_SOURCE_DIR} ${metal_portable})
  endif()
  return()
endif()
if(NOT ARGENT_TESTS OR ARGENT_FUZZ OR ARGENT_SANITIZE)
  return()
endif()
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64")
  message(STATUS "no tests of the Metal kernels: the emulator is built by g++ on x86-64 Linux only")
  return()
endif()
find_package(Python3 COMPONENTS Interpreter REQUIRED)

set(metal ${CMAKE_SOURCE_DIR}/src/backends/metal)
add_library(argent_metal_emu STATIC ${metal}/emu/device.cc ${metal}/emu/fiber.cc ${metal}/emu/finding.cc ${metal}/emu/machine.cc ${metal}/emu/memory.cc)
target_include_directories(argent_metal_emu PUBLIC ${CMAKE_SOURCE_DIR}/src)
target_compile_options(argent_metal_emu PRIVATE -O2)
target_link_libraries(argent_metal_emu PUBLIC argent_base fmt::fmt ${CMAKE_DL_LIBS})

file(GLOB metal_kernels CONFIGURE_DEPENDS ${metal}/kernels/*.metal ${CMAKE_SOURCE_DIR}/tests/metal/*.metal)
foreach(kernel ${metal_kernels})
  get_filename_component(name ${kernel} NAME_WE)
  set(generated ${CMAKE_BINARY_DIR}/metal/${name}.cc)
  add_custom_command(OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/metal
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/metal/gen.py host ${kernel} ${generated}
    DEPENDS ${kernel} ${CMAKE_SOURCE_DIR}/tools/metal/gen.py ${CMAKE_SOURCE_DIR}/src/quant/formats.def)
  list(APPEND metal_generated ${generated})
endforeach()
# dwarf-4: with 5, addr2line takes the generated file for the kernel's.
# signed-char: as Metal's char is.
set(metal_options -fsigned-char -g1 -gdwarf-4 -fno-exceptions -Wno-attributes -Wno-unused-function -Wno-unused-parameter -Wno-unused-variable)
set_property(SOURCE ${metal_generated} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)  # a library of Metal each
foreach(build fast checked)
  add_library(argent_metal_kernels_${build} OBJECT ${metal_generated})
  target_include_directories(argent_metal_kernels_${build} PRIVATE ${CMAKE_SOURCE_DIR}/src ${metal}/shim/host)
  target_compile_options(argent_metal_kernels_${build} PRIVATE -O2 ${metal_options})
endforeach()
# Not vectorised: each access of the text stays one access.
target_compile_options(argent_metal_kernels_checked PRIVATE -O1 -fno-tree-vectorize
  -fsanitize=thread,bounds,shift,integer-divide-by-zero)

# `--device metal-emu` of the program. Kernels make themselves known, so they are linked as objects.
set_property(SOURCE ${metal}/make.cc PROPERTY COMPILE_DEFINITIONS ARGENT_METAL_EMU)
target_link_libraries(argent_backends_metal PUBLIC argent_metal_emu)
target_link_libraries(argent PRIVATE $<TARGET_OBJECTS:argent_metal_kernels_fast>)

file(GLOB metal_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/metal/*_test.cc)
list(APPEND metal_tests ${CMAKE_SOURCE_DIR}/tests/metal/main.cc)
find_package(GTest REQUIRED)
add_library(argent_metal_tests OBJECT ${metal_tests})
target_include_directories(argent_metal_tests PRIVATE src tests)
target_compile_options(argent_metal_tests PRIVATE -O1)
target_link_libraries(argent_metal_tests PRIVATE argent_backends_metal argent_metal_emu GTest::gtest)
add_executable(test_metal $<TARGET_OBJECTS:argent_metal_tests> $<TARGET_OBJECTS:argent_metal_cases> $<TARGET_OBJECTS:argent_metal_kernels_fast>)
add_executable(test_metal_checked ${metal}/emu/instrument.cc $<TARGET_OBJECTS:argent_metal_tests> $<TARGET_OBJECTS:argent_metal_cases> $<TARGET_OBJECTS:argent_metal_kernels_checked>)
foreach(test test_metal test_metal_checked)
  set_target_properties(${test} PROPERTIES ENABLE_EXPORTS ON)  # for kernels loaded by --kernels
  target_link_libraries(${test} PRIVATE argent_backends_metal argent_metal_emu GTest::gtest)
  add_test(NAME ${test} COMMAND ${test})
endforeach()
add_dependencies(test_metal test_metal_checked)

# What dispatches do and cost on an Apple GPU, by formulas (docs/metal-predictions.md).
add_library(argent_metal_model STATIC ${CMAKE_SOURCE_DIR}/bench/metal/record.cc ${CMAKE_SOURCE_DIR}/bench/metal/recording_device.cc ${CMAKE_SOURCE_DIR}/bench/metal/shapes.cc
  ${CMAKE_SOURCE_DIR}/bench/metal/work.cc ${CMAKE_SOURCE_DIR}/bench/metal/work_model.cc)
target_include_directories(argent_metal_model PUBLIC src bench)
target_link_libraries(argent_metal_model PUBLIC argent_backends_metal argent_models argent_metal_emu)
add_executable(bench_metal_model ${CMAKE_SOURCE_DIR}/bench/metal/model.cc $<TARGET_OBJECTS:argent_metal_kernels_fast>)
set_target_properties(bench_metal_model PROPERTIES OUTPUT_NAME argent_bench_metal_model)
target_link_libraries(bench_metal_model PRIVATE argent_metal_model CLI11::CLI11 nlohmann_json::nlohmann_json)

# The backend over the emulator: op cases, steps, command lists.
file(GLOB metal_backend_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/metal_backend/*_test.cc)
add_library(argent_metal_backend_tests OBJECT ${metal_backend_tests})
target_include_directories(argent_metal_backend_tests PRIVATE src tests bench)
target_compile_options(argent_metal_backend_tests PRIVATE -O0)  # most of their build is templates of gtest
target_link_libraries(argent_metal_backend_tests PRIVATE argent_backends_metal argent_backends_split argent_models argent_reference argent_metal_emu argent_metal_model GTest::gtest)
add_executable(test_metal_backend $<TARGET_OBJECTS:argent_metal_backend_tests> $<TARGET_OBJECTS:argent_metal_kernels_fast>)
add_executable(test_metal_backend_checked ${metal}/emu/instrument.cc $<TARGET_OBJECTS:argent_metal_backend_tests> $<TARGET_OBJECTS:argent_metal_kernels_checked>)
foreach(test test_metal_backend test_metal_backend_checked)
  target_link_libraries(${test} PRIVATE argent_backends_metal argent_backends_split argent_models argent_reference argent_metal_emu argent_metal_model GTest::gtest_main)
  add_test(NAME ${test} COMMAND ${test})
endforeach()

# The host layer on a fake of Apple's Objective-C runtime and Metal, whose kernels run in the emulator under the checks.
argent_metal_apple(${CMAKE_SOURCE_DIR})
file(GLOB metal_fake CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/metal_apple/fake*.cc)
list(FILTER metal_fake EXCLUDE REGEX "_test.cc$")
add_library(argent_metal_fake OBJECT ${metal_fake})
target_include_directories(argent_metal_fake PRIVATE src tests)
target_compile_options(argent_metal_fake PRIVATE -O1)
target_link_libraries(argent_metal_fake PRIVATE fmt::fmt)
add_library(argent_metal_instrument OBJECT ${metal}/emu/instrument.cc)
target_include_directories(argent_metal_instrument PRIVATE src)
argent_metal_apple_tests(${CMAKE_SOURCE_DIR} ${metal_portable} $<TARGET_OBJECTS:argent_metal_fake>
  $<TARGET_OBJECTS:argent_metal_instrument> $<TARGET_OBJECTS:argent_metal_kernels_checked> argent_metal_emu)
target_compile_definitions(test_metal_apple PRIVATE ARGENT_FAKE_METAL)
# Kernels of these tests, which do not change with the backend's.
set(generated ${CMAKE_BINARY_DIR}/metal/test_kernels.cc)
set(kernel ${CMAKE_SOURCE_DIR}/tests/metal_apple/test_kernels.metal)
add_custom_command(OUTPUT ${generated}
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/metal/gen.py host ${kernel} ${generated}
  DEPENDS ${kernel} ${CMAKE_SOURCE_DIR}/tests/metal_apple/test_kernels.h ${CMAKE_SOURCE_DIR}/tools/metal/gen.py)
add_library(argent_metal_test_kernels OBJECT ${generated})
target_include_directories(argent_metal_test_kernels PRIVATE src tests ${metal}/shim/host)
get_target_property(checked_options argent_metal_kernels_checked COMPILE_OPTIONS)
target_compile_options(argent_metal_test_kernels PRIVATE ${checked_options})
target_link_libraries(test_metal_apple PRIVATE $<TARGET_OBJECTS:argent_metal_test_kernels>)
