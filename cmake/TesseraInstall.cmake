include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")
install(TARGETS tessera EXPORT tessera)
install(EXPORT tessera NAMESPACE tessera:: DESTINATION "${package_dir}" FILE tesseraTargets.cmake)
export(EXPORT tessera NAMESPACE tessera:: FILE "${PROJECT_BINARY_DIR}/tesseraTargets.cmake")

file(GLOB find_modules CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/Find*.cmake")
list(APPEND find_modules "${PROJECT_SOURCE_DIR}/cmake/TesseraFindLibrary.cmake")
configure_package_config_file(cmake/tesseraConfig.cmake.in "${PROJECT_BINARY_DIR}/tesseraConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tesseraConfig.cmake" "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake" ${find_modules}
        DESTINATION "${package_dir}")
# The package in the build tree reads the find modules beside it, as the installed one does.
file(COPY ${find_modules} DESTINATION "${PROJECT_BINARY_DIR}")
