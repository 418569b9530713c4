# The Metal kernels compiled for the emulator, and their tests (docs/metal.md). Twice: fast, and with every load, store, index and
# shift checked. The emulator needs g++: its -fsanitize=thread is what the checks hang on.
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

file(GLOB metal_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/metal/*.cc)
list(FILTER metal_tests EXCLUDE REGEX "cuda_")
find_package(GTest REQUIRED)
add_library(argent_metal_tests OBJECT ${metal_tests})
target_include_directories(argent_metal_tests PRIVATE src tests)
target_compile_options(argent_metal_tests PRIVATE -O1)
target_link_libraries(argent_metal_tests PRIVATE argent_backends_metal argent_metal_emu GTest::gtest)
add_executable(test_metal $<TARGET_OBJECTS:argent_metal_tests> $<TARGET_OBJECTS:argent_metal_kernels_fast>)
add_executable(test_metal_checked ${metal}/emu/instrument.cc $<TARGET_OBJECTS:argent_metal_tests> $<TARGET_OBJECTS:argent_metal_kernels_checked>)
foreach(test test_metal test_metal_checked)
  set_target_properties(${test} PROPERTIES ENABLE_EXPORTS ON)  # for kernels loaded by --kernels
  target_link_libraries(${test} PRIVATE argent_backends_metal argent_metal_emu GTest::gtest)
  add_test(NAME ${test} COMMAND ${test})
endforeach()
add_dependencies(test_metal test_metal_checked)

# The backend over the emulator: op cases, steps, command lists.
file(GLOB metal_backend_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/metal_backend/*_test.cc)
add_library(argent_metal_backend_tests OBJECT ${metal_backend_tests})
target_include_directories(argent_metal_backend_tests PRIVATE src tests)
target_compile_options(argent_metal_backend_tests PRIVATE -O1)
target_link_libraries(argent_metal_backend_tests PRIVATE argent_backends_metal argent_models argent_reference argent_metal_emu GTest::gtest)
add_executable(test_metal_backend $<TARGET_OBJECTS:argent_metal_backend_tests> $<TARGET_OBJECTS:argent_metal_kernels_fast>)
add_executable(test_metal_backend_checked ${metal}/emu/instrument.cc $<TARGET_OBJECTS:argent_metal_backend_tests> $<TARGET_OBJECTS:argent_metal_kernels_checked>)
foreach(test test_metal_backend test_metal_backend_checked)
  target_link_libraries(${test} PRIVATE argent_backends_metal argent_models argent_reference argent_metal_emu GTest::gtest_main)
  add_test(NAME ${test} COMMAND ${test})
endforeach()
