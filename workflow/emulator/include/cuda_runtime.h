// Found instead of NVIDIA's header when a kernel is compiled for the emulator. The folder must never
// be on the include path of nvcc or NVRTC.
#pragma once
#include "emulated_cuda.h"
