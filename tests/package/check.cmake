# cmake -D MODE=install|build_tree|subdirectory -D SOURCE=... -D BUILD=... -D WORK=... -D CXX=... -P check.cmake
# Builds and runs a program outside the project against the installed package, the build tree, or the sources.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(link tessera::tessera)
set(source main.cpp)
if(MODE STREQUAL "install")
  run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")
  set(where -D "CMAKE_PREFIX_PATH=${WORK}/prefix")
elseif(MODE STREQUAL "build_tree")
  set(where -D "tessera_DIR=${BUILD}")
else()
  # Building every module once more would prove nothing new.
  set(where -D "TESSERA_SOURCE_DIR=${SOURCE}" -D TESSERA_CUDA=OFF)
  set(link tessera::core)
  set(source core.cpp)
endif()
run("${CMAKE_COMMAND}" -S "${SOURCE}/tests/package/outside" -B "${WORK}/build" -G Ninja ${where} -D "OUTSIDE_LINK=${link}" -D "OUTSIDE_SOURCE=${source}"
    -D "CMAKE_CXX_COMPILER=${CXX}" -D CMAKE_BUILD_TYPE=Release)
run("${CMAKE_COMMAND}" --build "${WORK}/build" --target outside)
run("${WORK}/build/outside")
