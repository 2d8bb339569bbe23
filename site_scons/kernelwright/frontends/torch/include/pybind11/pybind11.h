/* See torch/extension.h. */
#pragma once
#include <torch/extension.h>
