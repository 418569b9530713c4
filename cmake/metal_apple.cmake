# The host layer of the Metal backend (src/backends/metal/apple) with the kernels' texts, and the program that runs all kernels'
# cases on a device. On a Mac over Apple's frameworks; elsewhere, for tests, over a fake that runs kernels in the emulator.
# Wants Python3_EXECUTABLE. root: the project's folder.
function(argent_metal_apple root)
  set(metal ${root}/src/backends/metal)
  file(GLOB kernels CONFIGURE_DEPENDS ${metal}/kernels/*.metal)
  file(GLOB headers CONFIGURE_DEPENDS ${metal}/kernels/*.h ${root}/src/quant/*.h ${root}/src/quant/*.def ${root}/src/sample/*.h)
  set(tools ${root}/tools/metal/library.py ${root}/tools/metal/gen.py)
  set(embedded ${CMAKE_BINARY_DIR}/metal/kernel_files.cc)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/metal)
  add_custom_command(OUTPUT ${embedded}
    COMMAND ${Python3_EXECUTABLE} ${root}/tools/metal/library.py embed ${embedded} ${kernels}
    DEPENDS ${kernels} ${headers} ${tools})
  file(GLOB sources CONFIGURE_DEPENDS ${metal}/apple/*.cc)
  add_library(argent_backends_metal_apple STATIC ${sources} ${embedded})
  set_property(TARGET argent_backends_metal_apple PROPERTY UNITY_BUILD OFF)  # tests/metal_apple/faults.py compiles its files
  target_include_directories(argent_backends_metal_apple PUBLIC ${root}/src)
  target_link_libraries(argent_backends_metal_apple PUBLIC fmt::fmt)
  if(APPLE)
    # CoreGraphics: without it a command-line program gets no Metal device.
    target_link_libraries(argent_backends_metal_apple PUBLIC "-framework Metal" "-framework Foundation" "-framework CoreGraphics" objc)
    # Precompiled kernels beside the programs, where the Metal compiler is installed (it comes with Xcode, not with the
    # command line tools); without it the texts above are compiled when a program starts.
    add_custom_target(argent_metallibs ALL
      COMMAND ${Python3_EXECUTABLE} ${root}/tools/metal/library.py metallib --keep-going ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/metal ${kernels} VERBATIM)
  endif()
endfunction()

# argent_metal_check, and test_metal_apple where GTest is. portable: the library with what the cases use; after it what has the
# fake, where there is no Metal.
function(argent_metal_apple_tests root portable)
  # The cases and what they share, but no tests and no programs.
  file(GLOB cases CONFIGURE_DEPENDS ${root}/tests/metal/*.cc)
  list(FILTER cases EXCLUDE REGEX "/(main|cuda_[a-z_]*|[a-z_]*_test)\\.cc$")
  add_library(argent_metal_cases OBJECT ${cases})
  set_property(TARGET argent_metal_cases PROPERTY UNITY_BUILD OFF)  # families of kernels have the same words: Shape, run
  target_include_directories(argent_metal_cases PRIVATE ${root}/src ${root}/tests)
  target_compile_options(argent_metal_cases PRIVATE -O1)
  target_link_libraries(argent_metal_cases PRIVATE fmt::fmt ${portable})
  set(here ${root}/tests/metal_apple)
  add_executable(argent_metal_check ${here}/check.cc ${here}/bench.cc $<TARGET_OBJECTS:argent_metal_cases>)
  set(programs argent_metal_check)
  if(NOT APPLE)
    add_test(NAME metal_check COMMAND argent_metal_check --bench-small)
  endif()
  if(TARGET GTest::gtest_main)
    if(APPLE)
      set(tests ${here}/cases_test.cc)
    else()
      file(GLOB tests CONFIGURE_DEPENDS ${here}/*_test.cc)
    endif()
    add_executable(test_metal_apple ${tests} $<TARGET_OBJECTS:argent_metal_cases>)
    target_link_libraries(test_metal_apple PRIVATE GTest::gtest_main)
    add_test(NAME test_metal_apple COMMAND test_metal_apple)
    list(APPEND programs test_metal_apple)
  endif()
  foreach(program ${programs})
    target_include_directories(${program} PRIVATE ${root}/src ${root}/tests)
    target_compile_options(${program} PRIVATE -O1)
    target_link_libraries(${program} PRIVATE argent_backends_metal_apple ${portable} nlohmann_json::nlohmann_json ${ARGN})
  endforeach()
endfunction()
