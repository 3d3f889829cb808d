#pragma once

#include "functors/unary.hpp"
#include "launch.hpp"

namespace tessera::kernels {

/// The compiled block function of f^(order); its functor object is one T, alpha.
template <class T>
BlockFunction<T> unary_block(UnaryKind kind, int order);

}  // namespace tessera::kernels

// Defines it for one T; included by one source per type, so that they compile side by side.
#define TESSERA_UNARY_ROW(kind)                           \
  {&detail::block_of<1, Unary<UnaryKind::kind, 0, T>, T>, \
   &detail::block_of<1, Unary<UnaryKind::kind, 1, T>, T>, \
   &detail::block_of<1, Unary<UnaryKind::kind, 2, T>, T>, \
   &detail::block_of<1, Unary<UnaryKind::kind, 3, T>, T>},
#define TESSERA_DEFINE_UNARY_BLOCK(Type)                              \
  namespace tessera::kernels {                                        \
  template <>                                                         \
  BlockFunction<Type> unary_block<Type>(UnaryKind kind, int order) {  \
    using T = Type;                                                   \
    static constexpr BlockFunction<T> table[][kMaxUnaryOrder + 1] = { \
        TESSERA_FOR_EACH_UNARY(TESSERA_UNARY_ROW)};                   \
    return table[static_cast<std::size_t>(kind)][order];              \
  }                                                                   \
  }
