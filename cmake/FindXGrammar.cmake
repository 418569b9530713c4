# xgrammar's static library and headers, as tools/setup.sh builds them (need_xgrammar). Defines xgrammar::xgrammar.
set(ARGENT_XGRAMMAR_ROOT "$ENV{ARGENT_XGRAMMAR_ROOT}" CACHE PATH "the folder with xgrammar's include/ and lib/")
set(XGrammar_VERSION 0.2.9)
set(cache "$ENV{XDG_CACHE_HOME}")
if(NOT cache)
  set(cache "$ENV{HOME}/.cache")
endif()
set(XGrammar_ROOT_DIR "${ARGENT_XGRAMMAR_ROOT}")
if(NOT XGrammar_ROOT_DIR)
  set(XGrammar_ROOT_DIR "${cache}/argent/xgrammar-${XGrammar_VERSION}")
endif()

if(NOT EXISTS "${XGrammar_ROOT_DIR}/lib/libxgrammar.a" OR NOT EXISTS "${XGrammar_ROOT_DIR}/include/xgrammar/xgrammar.h")
  message(FATAL_ERROR "xgrammar ${XGrammar_VERSION} is not in ${XGrammar_ROOT_DIR}: run ./quickstart, or "
    "bash -c '. tools/setup.sh && need_xgrammar', or set ARGENT_XGRAMMAR_ROOT to a folder with include/ and lib/")
endif()
if(NOT TARGET xgrammar::xgrammar)
  add_library(xgrammar::xgrammar STATIC IMPORTED)
  set_target_properties(xgrammar::xgrammar PROPERTIES
    IMPORTED_LOCATION "${XGrammar_ROOT_DIR}/lib/libxgrammar.a"
    INTERFACE_INCLUDE_DIRECTORIES "${XGrammar_ROOT_DIR}/include")
endif()
set(XGrammar_FOUND TRUE)
