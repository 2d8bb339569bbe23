# The kernels of @PACKAGE@ for C++: find_package(@PACKAGE@ CONFIG) defines a target for each kernel, and one for all,
# @PACKAGE@::@PACKAGE@. TVM-FFI is found as `python -m tvm_ffi.config --cmakedir` says (tvm_ffi_ROOT). Written by
# Kernelwright.
include(CMakeFindDependencyMacro)
find_dependency(tvm_ffi CONFIG)

get_filename_component(_kw_backend "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
get_filename_component(_kw_libraries "${_kw_backend}/../../_lib" ABSOLUTE)
if(NOT TARGET @PACKAGE@::@PACKAGE@)
  add_library(@PACKAGE@::@PACKAGE@ INTERFACE IMPORTED)
  foreach(_kw_kernel @KERNELS@)
    # Libraries of kernels have no soname, so they are linked by their file names, and found below the package.
    add_library(@PACKAGE@::${_kw_kernel} INTERFACE IMPORTED)
    set_target_properties(
      @PACKAGE@::${_kw_kernel}
      PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_kw_backend}/include"
                 INTERFACE_COMPILE_FEATURES cxx_std_17
                 INTERFACE_LINK_DIRECTORIES "${_kw_libraries}"
                 INTERFACE_LINK_OPTIONS "LINKER:-rpath,${_kw_libraries}"
                 INTERFACE_LINK_LIBRARIES "-l:${_kw_kernel}.so;tvm_ffi::header;tvm_ffi::shared")
    set_property(TARGET @PACKAGE@::@PACKAGE@ APPEND PROPERTY INTERFACE_LINK_LIBRARIES @PACKAGE@::${_kw_kernel})
  endforeach()
endif()
