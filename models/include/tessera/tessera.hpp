#pragma once

/// All public headers.
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/interpolate.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/pool.hpp>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/rotary.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/solvers.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/models/vit.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/data/super_resolution.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/parallel/runtime.hpp>
