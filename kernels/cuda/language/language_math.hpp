#pragma once

// What CUDA has for math.hpp; ../../src/language has the same for C++.

#include <cmath>

#define TESSERA_HD __host__ __device__ __forceinline__

#define TESSERA_VECTOR_MATH(name)
#define TESSERA_VECTOR_MATH2(name)
#define TESSERA_MATH_NAME(name) ::name
#define TESSERA_MATH_NAMEF(name) ::name##f
