#pragma once

#include <cstdint>
#include <optional>
#include <tessera/autograd/ops/loss.hpp>

// Losses for classes: scalars, means over what counts in the global tensors, wherever samples, the
// domain and the classes are split. bf16 is widened to fp32. Shapes: [..., C] are all of samples,
// domain and classes; a target of class numbers (int32, int64) lacks the last one.
namespace tessera::nn {

/// Options of cross_entropy().
struct CrossEntropyOptions {
  Tensor class_weight = {};  ///< w [C]: how much a class counts, above and below
  /// e: the target is (1 - e) times its class plus e / C of every class (Szegedy et al. 2016).
  double label_smoothing = 0.0;
  /// A class that does not count, beside numbers that are no class, which never do.
  std::optional<std::int64_t> ignore = {};
};

/// sum_n [(1 - e) w_y (-log p_y) + e / C sum_c w_c (-log p_c)] / sum_n w_y over the samples n that
/// count, p = softmax(logits), y = target; what torch computes. Without options the same ops as
/// tessera::cross_entropy. Throws ShapeError, DTypeError, and UsageError unless 0 <= e <= 1.
Tensor cross_entropy(const Tensor& logits,
                     const Tensor& target,
                     const CrossEntropyOptions& options);

/// Options of bce_with_logits().
struct BceOptions {
  Tensor pos_weight = {};  ///< factor of the term of t = 1, of a shape that stretches to the logits
  Tensor weight = {};      ///< of each element, likewise; the divisor is its sum over all elements
};

/// Mean of pos_weight t softplus(-x) + (1 - t) softplus(x): binary cross-entropy of sigmoid(x),
/// without overflow or cancellation for any logit. `target` in [0, 1], of the logits' shape, any
/// type.
Tensor bce_with_logits(const Tensor& logits, const Tensor& target, const BceOptions& options = {});

/// Options of focal_loss().
struct FocalOptions {
  double gamma = 2.0;
  double alpha = 0.25;  ///< weight of t = 1, 1 - alpha of t = 0; negative: none
  Tensor weight = {};   ///< as BceOptions::weight
};

/// Mean of -alpha_t (1 - p_t)^gamma log p_t (Lin et al. 2017), p_t the probability sigmoid(+-x) of
/// what is so. `target` is 0 or 1, of the logits' shape, any type. Throws UsageError where gamma is
/// negative.
Tensor focal_loss(const Tensor& logits, const Tensor& target, const FocalOptions& options = {});

/// Options of dice_loss().
struct DiceOptions {
  double smooth = 1.0;       ///< s
  bool squared = false;      ///< squares of p and t in the denominator (Milletari et al. 2016)
  bool per_sample = false;   ///< a score for each sample, then their mean; else one for all samples
  Tensor class_weight = {};  ///< [C]: of the mean over classes; 0 leaves a class (background) out
  Tensor weight = {};        ///< of each element, of a shape that stretches to the probabilities
};

/// 1 - mean over classes of (2 sum p t + s) / (sum p + sum t + s), the soft Dice score, sums over
/// the domain and (unless per_sample) samples. `probabilities` p [N, domain..., C]; `target` t of
/// that shape, or class numbers [N, domain...]: points whose number is no class do not count, in p
/// either.
Tensor dice_loss(const Tensor& probabilities,
                 const Tensor& target,
                 const DiceOptions& options = {});

}  // namespace tessera::nn
