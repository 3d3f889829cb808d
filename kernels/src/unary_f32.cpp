#include "functors/unary_table.hpp"

TESSERA_DEFINE_UNARY_BLOCK(float)
