# tessera_find_library(<Package> TARGET <name> HEADER <h> NAMES <lib>... [HINTS dir...] [INCLUDE_SUFFIXES dir...] [LINK lib...])
# Body of a find module for a C library without a CMake package: defines the imported target tessera::<name>.
include(FindPackageHandleStandardArgs)

macro(tessera_find_library package)
  cmake_parse_arguments(_find "" "TARGET;HEADER" "NAMES;HINTS;INCLUDE_SUFFIXES;LINK" ${ARGN})
  find_path(${package}_INCLUDE_DIR ${_find_HEADER} HINTS ${_find_HINTS} PATH_SUFFIXES ${_find_INCLUDE_SUFFIXES})
  find_library(${package}_LIBRARY NAMES ${_find_NAMES} HINTS ${_find_HINTS})
  mark_as_advanced(${package}_INCLUDE_DIR ${package}_LIBRARY)
  find_package_handle_standard_args(${package} REQUIRED_VARS ${package}_LIBRARY ${package}_INCLUDE_DIR)
  if(${package}_FOUND AND NOT TARGET tessera::${_find_TARGET})
    add_library(tessera::${_find_TARGET} UNKNOWN IMPORTED)
    set_target_properties(tessera::${_find_TARGET} PROPERTIES
      IMPORTED_LOCATION "${${package}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${${package}_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES "${_find_LINK}")
  endif()
endmacro()
