/* The launcher of all kernels, which is compiled once. */
#include "launcher.h"
