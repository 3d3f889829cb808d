#pragma once

#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/group_norm.hpp>
#include <tessera/kernels/layer_norm.hpp>
#include <tessera/kernels/optim.hpp>
#include <tessera/kernels/random.hpp>
#include <tessera/kernels/reduce.hpp>

// The kernels of the GPU: defined in cuda/*.cu, or by src/nocuda/*.cpp that throw DeviceError.

namespace tessera::kernels::cuda {

/// What every stub of a build without CUDA does.
[[noreturn]] void throw_no_cuda();

void unary(UnaryKind kind, int order, double alpha, const View* g, const View& x, const View& y);
void binary(BinaryKind kind, const View& a, const View& b, const View& y);
void compare(CompareKind kind, const View& a, const View& b, const View& y);
void logical(LogicalKind kind, const View& a, const View& b, const View& y);
void logical_not(const View& x, const View& y);
void where(const View& condition, const View& a, const View& b, const View& y);
void clamp(const View& x, double low, double high, const View& y);
void clamp_grad(const View& g, const View& x, double low, double high, const View& y);
void affine(double alpha, const View& x, double beta, const View& y);
void axpby(double alpha, const View& a, double beta, const View& b, const View& y);
void mul_add(const View& a, const View& b, const View& c, const View& y);
void fill(const View& y, double value);
void copy(const View& x, const View& y);

void random_bits(PhiloxKey key, const Piece& y);
void random_uniform(PhiloxKey key, double low, double high, const Piece& y);
void random_normal(PhiloxKey key, double mean, double stddev, const Piece& y);
void dropout(PhiloxKey key, double p, const View& x, const Piece& y);

void gemm(double alpha, const View& a, const View& b, double beta, const View& c);

void reduce(ReduceKind kind, const View& x, const View& y);

void group_moments(const View& x, const GroupNormOptions& options, const View& moments);
void merge_moments(const View& parts, const View& moments);
void group_norm(const View& x,
                const View& moments,
                const View& gamma,
                const View& beta,
                const GroupNormOptions& options,
                const View& y);
void group_norm_sums(const View& x,
                     const View& dy,
                     const View& moments,
                     const View& gamma,
                     const View& beta,
                     const GroupNormOptions& options,
                     const View& sums,
                     const View& dgamma,
                     const View& dbeta);
void group_norm_input_grad(const View& x,
                           const View& dy,
                           const View& moments,
                           const View& gamma,
                           const View& beta,
                           const View& sums,
                           const GroupNormOptions& options,
                           const View& dx);

void take_rows(const View& x, const View& index, std::int64_t first, const View& y);
void scatter_add_rows(
    const View& x, const View& index, std::int64_t first, bool accumulate, const View& y);

void adamw_step(std::span<const OptimSegment> segments, const AdamWCoefficients& coefficients);
void sgd_step(std::span<const OptimSegment> segments, double momentum, bool nesterov);
void ema_step(std::span<const OptimSegment> segments, double decay);
double sum_of_squares(const View& view);

void layer_norm(const View& x,
                const View& gamma,
                const View& beta,
                const LayerNormOptions& options,
                const View& y);
void layer_norm_grad(const View& x,
                     const View& dy,
                     const View& gamma,
                     const LayerNormOptions& options,
                     const View& dx,
                     const View& dgamma,
                     const View& dbeta);

}  // namespace tessera::kernels::cuda
