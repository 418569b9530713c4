# What test.sh and program.sh give the build instead of packages for aarch64, which need dpkg's foreign architectures:
# googletest, fmt and xxhash compiled from what their packages have of source (libraries of headers are the host's).
# Grammar, server and program need two more: ARGENT_ARM_PACKAGES is a folder with libssl-dev unpacked, and
# ARGENT_XGRAMMAR_ROOT one with xgrammar. Without, these are empty targets, so that configuring goes through.
set(googletest /usr/src/googletest/googletest)
set(own ${CMAKE_CURRENT_LIST_DIR})

macro(arm_package method name)
  if("${name}" STREQUAL "fmt" OR "${name}" STREQUAL "GTest")
    set(${name}_FOUND TRUE)
    if("${name}" STREQUAL "fmt" AND NOT TARGET fmt::fmt)
      add_library(fmt STATIC EXCLUDE_FROM_ALL ${own}/fmt.cc)
      add_library(fmt::fmt ALIAS fmt)
      add_library(xxhash STATIC EXCLUDE_FROM_ALL ${own}/xxhash.cc)
    elseif("${name}" STREQUAL "GTest" AND NOT TARGET GTest::gtest_main)
      add_library(gtest_main STATIC EXCLUDE_FROM_ALL ${googletest}/src/gtest-all.cc ${googletest}/src/gtest_main.cc)
      target_include_directories(gtest_main PRIVATE ${googletest})
      add_library(GTest::gtest_main ALIAS gtest_main)
    endif()
  elseif("${name}" STREQUAL "Boost" OR "${name}" STREQUAL "OpenSSL"
      OR ("${name}" STREQUAL "XGrammar" AND NOT ARGENT_ARM_PACKAGES))
    set(${name}_FOUND TRUE)
    foreach(target Boost::headers OpenSSL::SSL OpenSSL::Crypto xgrammar::xgrammar)
      if(NOT TARGET ${target})
        add_library(${target} INTERFACE IMPORTED)
      endif()
    endforeach()
    if("${name}" STREQUAL "OpenSSL" AND ARGENT_ARM_PACKAGES)
      set(usr ${ARGENT_ARM_PACKAGES}/usr)
      target_include_directories(OpenSSL::SSL INTERFACE ${usr}/include ${usr}/include/aarch64-linux-gnu)
      target_link_libraries(OpenSSL::SSL INTERFACE
        ${usr}/lib/aarch64-linux-gnu/libssl.a ${usr}/lib/aarch64-linux-gnu/libcrypto.a)
    endif()
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

# A test of the server includes OpenSSL's headers, which the host's compiler finds by itself.
function(arm_server_tests)
  if(TARGET test_server)
    target_link_libraries(test_server PRIVATE OpenSSL::SSL)
  endif()
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL arm_server_tests)
