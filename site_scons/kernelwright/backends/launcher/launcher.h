/* The launcher: chooses the variant that a call runs, loads device code, launches it, and has the threads and the memory
 * that kernels ask for. It knows no kernel: its functions get a kernel's tables as arguments. */
#ifndef KW_LAUNCHER_H
#define KW_LAUNCHER_H

#include "kernelwright.h"

#include <errno.h>

#include "current.h"
#include "error.h"
#include "share.h"
#include "fork.h"
#include "cpu.h"
#include "driver.h"
#include "provider.h"
#include "device.h"
#include "context.h"
#include "image.h"
#include "module.h"
#include "tensormap.h"
#include "launch_text.h"
#include "shared_memory.h"
#include "launch.h"
#include "host.h"
#include "memory.h"
#include "order.h"
#include "workspace.h"
#include "threads.h"
#include "numbers.h"
#include "mismatch.h"
#include "fold.h"
#include "call.h"
#include "xla.h"
#include "output.h"
#include "tables.h"
#include "computed.h"
#include "dispatch.h"
#include "gridded.h"
#include "serve.h"

#endif
