# What tools/arm/test.sh gives the build instead of packages for aarch64, which need dpkg's foreign architectures:
# googletest and fmt compiled from what their packages have of source (libraries of headers are the host's). The
# packages that only the program itself needs are empty targets, so that configuring goes through; it does not link.
set(googletest /usr/src/googletest/googletest)
set(own ${CMAKE_CURRENT_LIST_DIR})

macro(arm_package method name)
  if("${name}" STREQUAL "fmt" OR "${name}" STREQUAL "GTest")
    set(${name}_FOUND TRUE)
    if("${name}" STREQUAL "fmt" AND NOT TARGET fmt::fmt)
      add_library(fmt STATIC EXCLUDE_FROM_ALL ${own}/fmt.cc)
      add_library(fmt::fmt ALIAS fmt)
    elseif("${name}" STREQUAL "GTest" AND NOT TARGET GTest::gtest_main)
      add_library(gtest_main STATIC EXCLUDE_FROM_ALL ${googletest}/src/gtest-all.cc ${googletest}/src/gtest_main.cc)
      target_include_directories(gtest_main PRIVATE ${googletest})
      add_library(GTest::gtest_main ALIAS gtest_main)
    endif()
  elseif("${name}" STREQUAL "XGrammar" OR "${name}" STREQUAL "OpenSSL" OR "${name}" STREQUAL "Boost")
    set(${name}_FOUND TRUE)
    foreach(target xgrammar::xgrammar OpenSSL::SSL OpenSSL::Crypto Boost::headers)
      if(NOT TARGET ${target})
        add_library(${target} INTERFACE IMPORTED)
      endif()
    endforeach()
  endif()
endmacro()

cmake_language(SET_DEPENDENCY_PROVIDER arm_package SUPPORTED_METHODS FIND_PACKAGE)

# The kernels and their tests without the rooms around them, which are most of test_backends_cpu's compile time.
function(arm_kernels)
  set(cpu ${CMAKE_SOURCE_DIR}/src/backends/cpu)
  file(GLOB kernels ${cpu}/isa/*_baseline.cc ${cpu}/isa/*_neon.cc ${cpu}/isa/*_i8mm.cc)
  list(FILTER kernels EXCLUDE REGEX "/sample_")
  set(tests attention matmul pack peaks same_bits vector)
  list(TRANSFORM tests REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/tests/backends_cpu/\\1_test.cc")
  add_executable(test_arm_kernels EXCLUDE_FROM_ALL ${kernels} ${tests}
    ${cpu}/isa.cc ${cpu}/matmul.cc ${cpu}/pack.cc ${cpu}/peaks.cc ${cpu}/vector.cc)
  target_include_directories(test_arm_kernels PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(test_arm_kernels PRIVATE argent_quant argent_base GTest::gtest_main)
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL arm_kernels)
