#include "support/autograd/pairs.hpp"

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera::test {

namespace {

/// Every input may be split in both dimensions of its grid; the result is split as input 0. Where
/// an input is whole, it is cut like the one that is not.
void ring_signatures(int inputs, void (*run)(RunContext&), std::vector<Signature>& legal) {
  for (int d = 0; d < 2; ++d) {
    for (int driver = 0; driver < inputs; ++driver) {
      legal.push_back({.in = std::vector<Role>(static_cast<std::size_t>(inputs), shard_role(d)),
                       .out = {shard_role(d)},
                       .driver = driver,
                       .run = run});
    }
  }
}

/// A dense block of points: [points, width] in fp64.
struct Block {
  std::int64_t points = 0;
  std::int64_t width = 0;
  std::vector<double> values;
  const double* row(std::int64_t i) const { return values.data() + i * width; }
};

Block own_block(const Tensor& t) {
  Block b{t.local_shape()[0] * t.local_shape()[1], t.local_shape()[2], {}};
  for_each_index(t.local_box(), [&](const Index& i) { b.values.push_back(t.at(i)); });
  return b;
}

double product(const double* a, const double* b, std::int64_t n) {
  double s = 0.0;
  for (std::int64_t i = 0; i < n; ++i) s += a[i] * b[i];
  return s;
}

/// Hands the walking tensors once around the ranks of `axes`; calls visit(blocks) for each stop.
void walk(const std::vector<Tensor>& tensors,
          AxisMask axes,
          const std::function<void(const std::vector<Block>&)>& visit) {
  const Mesh& mesh = tensors[0].mesh();
  const std::vector<int> ring = mesh.group(mesh.rank(), axes);
  const auto size = static_cast<int>(ring.size());
  int place = 0;
  while (ring[static_cast<std::size_t>(place)] != mesh.rank()) ++place;
  const auto member = [&](int p) { return ring[static_cast<std::size_t>((p + size) % size)]; };

  std::vector<Block> blocks;
  for (const Tensor& t : tensors) blocks.push_back(own_block(t));
  for (int step = 0; step < size; ++step) {
    std::vector<Block> next(tensors.size());
    std::vector<parallel::Request> requests;
    for (std::size_t t = 0; t < tensors.size() && step + 1 < size; ++t) {
      // After this step the block of the rank one further back is here.
      const Shape shape = tensors[t].layout().owned(member(place - step - 1)).shape();
      next[t] = {shape[0] * shape[1], shape[2], {}};
      next[t].values.resize(static_cast<std::size_t>(next[t].points * next[t].width));
      const auto bytes = [](const Block& b) {
        return static_cast<std::int64_t>(b.values.size() * sizeof(double));
      };
      const int tag = static_cast<int>(t);
      requests.push_back(parallel::irecv(next[t].values.data(), bytes(next[t]),
                                         mesh.process_of(member(place - 1)), tag));
      requests.push_back(parallel::isend(blocks[t].values.data(), bytes(blocks[t]),
                                         mesh.process_of(member(place + 1)), tag));
    }
    visit(blocks);
    parallel::wait_all(requests);
    if (step + 1 < size) blocks = std::move(next);
  }
}

void store(const Tensor& y, const std::vector<double>& values) {
  std::size_t next = 0;
  const View view = y.mutable_local();
  for_each_index(Box::whole(y.local_shape()), [&](const Index& i) {
    std::int64_t offset = 0;
    for (int d = 0; d < 3; ++d) offset += i[d] * view.strides[d];
    store_double(view.data, view.dtype, offset, values[next++]);
  });
}

void pairs_run(RunContext& context) {
  const Block q = own_block(context.in[0]);
  const std::int64_t e = context.out[0].shape()[2];
  std::vector<double> y(static_cast<std::size_t>(q.points * e), 0.0);
  walk({context.in[1], context.in[2]}, context.axes, [&](const std::vector<Block>& kv) {
    for (std::int64_t i = 0; i < q.points; ++i) {
      for (std::int64_t j = 0; j < kv[0].points; ++j) {
        const double s = product(q.row(i), kv[0].row(j), q.width);
        for (std::int64_t c = 0; c < e; ++c)
          y[static_cast<std::size_t>(i * e + c)] += s * s * kv[1].row(j)[c];
      }
    }
  });
  store(context.out[0], y);
}

/// z[i] = sum_j 2 (q[i] . k[j]) (g[i] . v[j]) k[j]; inputs q, g stay, k, v walk.
void pairs_grad_run(RunContext& context) {
  const Block q = own_block(context.in[0]);
  const Block g = own_block(context.in[1]);
  std::vector<double> z(q.values.size(), 0.0);
  walk({context.in[2], context.in[3]}, context.axes, [&](const std::vector<Block>& kv) {
    for (std::int64_t i = 0; i < q.points; ++i) {
      for (std::int64_t j = 0; j < kv[0].points; ++j) {
        const double s = 2.0 * product(q.row(i), kv[0].row(j), q.width) *
                         product(g.row(i), kv[1].row(j), g.width);
        for (std::int64_t c = 0; c < q.width; ++c)
          z[static_cast<std::size_t>(i * q.width + c)] += s * kv[0].row(j)[c];
      }
    }
  });
  store(context.out[0], z);
}

/// Without a split there is nothing to walk.
void run_locally(const LocalCall& call, void (*run)(RunContext&)) {
  std::vector<Tensor> in;
  const auto tensor = [](const Piece& piece) {
    return Tensor::from_local(piece.view, Layout::replicated(Mesh::self(), piece.view.shape));
  };
  for (const Piece& piece : call.in) in.push_back(tensor(piece));
  const Tensor out = tensor(call.out[0]);
  RunContext context{call.args, call.dynamic, in, std::span(&out, 1), 0};
  run(context);
  for_each_index(out.local_box(), [&](const Index& i) {
    std::int64_t offset = 0;
    for (int d = 0; d < 3; ++d) offset += i[d] * call.out[0].view.strides[d];
    store_double(call.out[0].view.data, call.out[0].view.dtype, offset, out.at(i));
  });
}

extern const OpDef pairs_grad_op;

void pairs_vjp(VjpContext& context) {
  const Tensor q = context.input(0);
  const Tensor k = context.input(1);
  const Tensor v = context.input(2);
  const Tensor g = context.grad();
  if (context.needs(0)) context.set(0, call<NoArgs>(pairs_grad_op, {q, g, k, v}));
  if (context.needs(1)) context.set(1, call<NoArgs>(pairs_grad_op, {k, v, q, g}));
  if (context.needs(2)) context.set(2, all_pairs(k, q, g));
}

/// (q . k)^2 = <q x q, k x k>: the sum over j does not depend on i.
std::vector<Tensor> pairs_decompose(const VjpContext& context) {
  const auto squares = [](const Tensor& t) {  // [H, W, d, d, 1]
    const Shape s = t.shape();
    return reshape(t, {s[0], s[1], s[2], 1, 1}) * reshape(t, {s[0], s[1], 1, s[2], 1});
  };
  const Tensor v = context.input(2);
  const Shape s = v.shape();
  const Tensor moments =
      sum(squares(context.input(1)) * reshape(v, {s[0], s[1], 1, 1, s[2]}), {0, 1});
  return {sum(squares(context.input(0)) * moments, {2, 3})};
}

const OpDef pairs_op = {
    .name = "all_pairs",
    .infer =
        [](const Problem& p, std::vector<OutputMeta>& out) {
          out.push_back({{p.shape(0)[0], p.shape(0)[1], p.shape(2)[2]}, p.dtypes[0]});
        },
    .signatures = [](const Problem&,
                     const AxisGroup&,
                     std::vector<Signature>& s) { ring_signatures(3, pairs_run, s); },
    .local = [](const LocalCall& c) { run_locally(c, pairs_run); },
    .vjp = pairs_vjp,
    .decompose = pairs_decompose,
    .saved_inputs = 0b111};

const OpDef pairs_grad_op = {.name = "all_pairs_grad",
                             .infer =
                                 [](const Problem& p, std::vector<OutputMeta>& out) {
                                   out.push_back({p.shape(0), p.dtypes[0]});
                                 },
                             .signatures =
                                 [](const Problem&, const AxisGroup&, std::vector<Signature>& s) {
                                   ring_signatures(4, pairs_grad_run, s);
                                 },
                             .local = [](const LocalCall& c) { run_locally(c, pairs_grad_run); }};

}  // namespace

Tensor all_pairs(const Tensor& q, const Tensor& k, const Tensor& v) {
  return call<NoArgs>(pairs_op, {q, k, v});
}

DenseArray all_pairs_reference(const DenseArray& q, const DenseArray& k, const DenseArray& v) {
  DenseArray y(Shape{q.shape[0], q.shape[1], v.shape[2]});
  for_each(y.shape, [&](const Index& i) {
    for_each({k.shape[0], k.shape[1]}, [&](const Index& j) {
      double s = 0.0;
      for (std::int64_t c = 0; c < q.shape[2]; ++c) s += q(i[0], i[1], c) * k(j[0], j[1], c);
      y[i] += s * s * v(j[0], j[1], i[2]);
    });
  });
  return y;
}

}  // namespace tessera::test
