// Einstein's sums as permutations, products, matrix products and sums.

#include <algorithm>
#include <map>
#include <string>
#include <tessera/autograd/ops/einsum.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

namespace tessera {

namespace {

using Labels = std::string;

/// A tensor whose dimensions have names.
struct Term {
  Tensor x;
  Labels labels;

  int dim(char label) const { return static_cast<int>(labels.find(label)); }
  bool has(char label) const { return labels.find(label) != Labels::npos; }
  std::int64_t size(char label) const { return x.shape()[dim(label)]; }
  bool splits(char label) const { return has(label) && x.layout().is_split(dim(label)); }
};

[[noreturn]] void refuse(std::string_view equation, const std::string& problem) {
  throw ShapeError(str("einsum: \"", equation, "\" ", problem));
}

/// Names of the dimensions that `...` stands for: the last one is '0'.
Labels unnamed(int count) {
  Labels labels;
  for (int i = count - 1; i >= 0; --i) labels.push_back(static_cast<char>('0' + i));
  return labels;
}

constexpr std::string_view kEllipsis = "...";

/// `text` with `...` replaced by the names of `count` dimensions.
Labels expanded(std::string_view equation, std::string_view text, int count) {
  Labels labels;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (text.substr(i, 3) == kEllipsis) {
      if (text.find(kEllipsis, i + 3) != std::string_view::npos)
        refuse(equation, "has ... twice in one place. Write it once.");
      labels += unnamed(count);
      i += 2;
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      labels.push_back(c);
    } else {
      refuse(equation, str("has '", c, "' for a dimension. Use letters."));
    }
  }
  return labels;
}

struct Equation {
  std::vector<Labels> inputs;
  Labels output;
};

Equation parse(std::string_view text, const std::vector<Tensor>& operands) {
  std::string plain;
  for (const char c : text)
    if (c != ' ') plain.push_back(c);
  const std::size_t arrow = plain.find("->");
  const std::string left = plain.substr(0, arrow);
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t comma = left.find(',', begin);
    parts.push_back(left.substr(begin, comma - begin));
    if (comma == std::string::npos) break;
    begin = comma + 1;
  }
  if (parts.size() != operands.size()) {
    refuse(text, str("names ", parts.size(), " operands, but ", operands.size(), " were given."));
  }
  Equation equation;
  int most = 0;  // dimensions that any ... stands for
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const int dims = operands[i].dims();
    const bool open = parts[i].find(kEllipsis) != std::string::npos;
    const int named = static_cast<int>(parts[i].size()) - (open ? 3 : 0);
    if (open ? dims < named : dims != named) {
      refuse(text, str("gives operand ", i, " ", named, " dimensions, but it has shape ",
                       operands[i].shape(), ". Name each one."));
    }
    most = std::max(most, dims - named);
    equation.inputs.push_back(expanded(text, parts[i], dims - named));
  }
  if (arrow != std::string::npos) {
    equation.output = expanded(text, std::string_view(plain).substr(arrow + 2), most);
  } else {
    std::map<char, int> uses;
    for (const Labels& labels : equation.inputs)
      for (const char c : labels) ++uses[c];
    equation.output = unnamed(most);
    for (const auto& [label, count] : uses)
      if (count == 1 && label > '9') equation.output.push_back(label);
  }
  return equation;
}

void check(std::string_view text, const Equation& equation, const std::vector<Tensor>& operands) {
  std::map<char, std::int64_t> sizes;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (std::size_t d = 0; d < equation.inputs[i].size(); ++d) {
      const char label = equation.inputs[i][d];
      const std::int64_t n = operands[i].shape()[static_cast<int>(d)];
      const auto [entry, fresh] = sizes.try_emplace(label, n);
      if (!fresh && entry->second != n) {
        refuse(text, str("needs dimension ", d, " of operand ", i, " with ", n,
                         " elements to have ", entry->second, " (they share a letter)."));
      }
    }
  }
  for (std::size_t d = 0; d < equation.output.size(); ++d) {
    const char label = equation.output[d];
    if (!sizes.contains(label))
      refuse(text, str("wants '", label, "' in the result, which no operand has."));
    if (equation.output.find(label, d + 1) != Labels::npos)
      refuse(text, str("names '", label, "' twice in the result. Use expand() after."));
  }
}

Term permuted(const Term& term, const Labels& order) {
  if (order == term.labels) return term;
  Dims dims;
  for (const char label : order) dims.push_back(term.dim(label));
  return {permute(term.x, dims), order};
}

Term summed_over(const Term& term, const Labels& gone) {
  if (gone.empty()) return term;
  Dims dims;
  Labels rest;
  for (const char label : term.labels) {
    if (gone.find(label) == Labels::npos) {
      rest.push_back(label);
    } else {
      dims.push_back(term.dim(label));
    }
  }
  return {sum(term.x, dims), rest};
}

/// Dimensions of one name become their diagonal.
Term diagonals(Term term) {
  for (std::size_t first = 0; first < term.labels.size(); ++first) {
    const int d = static_cast<int>(first);
    std::size_t e;
    while ((e = term.labels.find(term.labels[first], first + 1)) != Labels::npos) {
      const int other = static_cast<int>(e);
      Shape shape = Shape::filled(term.x.dims(), 1);
      shape[d] = shape[other] = term.x.shape()[d];
      const Mesh mesh = term.x.mesh();
      const Tensor equal_index = Tensor::from_function(
          Layout::replicated(mesh, shape),
          [=](const Index& i) { return i[d] == i[other] ? 1.0 : 0.0; }, DType::kBool);
      const Tensor zero = Tensor::scalar(mesh, 0.0, term.x.dtype());
      term.x = sum(where(equal_index, term.x, zero), {other});
      term.labels.erase(e, 1);
    }
  }
  return term;
}

/// The dimensions of a product of two terms.
struct Roles {
  Labels batch;       // in both, and kept
  Labels inner;       // in both, and summed
  Labels left;        // in the first alone
  Labels right;       // in the second alone
  Labels inner_rest;  // summed as well, but after the product
  Labels left_rest;   // split dimensions that cannot be flattened with another split one:
  Labels right_rest;  // the other factor is stretched along them
};

/// Moves all split labels but one out of `from`, which begins with that one.
void keep_one_split(const Term& a, const Term& b, Labels& from, Labels& rest) {
  const auto split = [&](char label) { return a.splits(label) || b.splits(label); };
  std::stable_partition(from.begin(), from.end(), split);
  const auto end = std::find_if_not(from.begin(), from.end(), split);
  if (end - from.begin() < 2) return;
  rest.assign(from.begin() + 1, end);
  from.erase(from.begin() + 1, end);
}

Roles roles_of(const Term& a, const Term& b, const Labels& keep) {
  Roles r;
  for (const char label : a.labels) {
    const bool kept = keep.find(label) != Labels::npos;
    (b.has(label) ? kept ? r.batch : r.inner : r.left).push_back(label);
  }
  for (const char label : b.labels)
    if (!a.has(label)) r.right.push_back(label);
  keep_one_split(a, b, r.inner, r.inner_rest);
  keep_one_split(a, b, r.right, r.right_rest);
  // A second factor of two dimensions leaves those of the first alone.
  if (!(r.batch + r.inner_rest + r.right_rest).empty()) keep_one_split(a, b, r.left, r.left_rest);
  return r;
}

std::int64_t size_of_all(const Term& term, const Labels& labels) {
  std::int64_t n = 1;
  for (const char label : labels) n *= term.size(label);
  return n;
}

void append_sizes(Shape& shape, const Term& term, const Labels& labels) {
  for (const char label : labels) shape.push_back(term.size(label));
}

/// [lead..., one for each of `groups`], of size 1 along labels of `lead` that the term lacks.
Tensor arranged(const Term& term, const Labels& lead, std::initializer_list<Labels> groups) {
  Labels own;
  Shape shape;
  for (const char label : lead) {
    if (term.has(label)) own.push_back(label);
    shape.push_back(term.has(label) ? term.size(label) : 1);
  }
  for (const Labels& group : groups) {
    own += group;
    shape.push_back(size_of_all(term, group));
  }
  return reshape(permuted(term, own).x, shape);
}

/// [lead..., rows, columns]: labels of `lead` that the term lacks are stretched to their size in
/// `other`.
Tensor as_matrices(const Term& term,
                   const Term& other,
                   const Labels& lead,
                   const Labels& rows,
                   const Labels& columns) {
  const Tensor x = arranged(term, lead, {rows, columns});
  Shape wide = x.shape();
  for (std::size_t i = 0; i < lead.size(); ++i)
    if (!term.has(lead[i])) wide[static_cast<int>(i)] = other.size(lead[i]);
  return x.shape() == wide ? x : expand(x, wide);
}

/// Element by element over all dimensions of both; for what is not summed, and for integers.
Term stretched_product(const Term& a, const Term& b, const Labels& keep) {
  Labels all = a.labels;
  for (const char label : b.labels)
    if (!a.has(label)) all.push_back(label);
  Labels gone;
  for (const char label : all)
    if (keep.find(label) == Labels::npos) gone.push_back(label);
  return summed_over({arranged(a, all, {}) * arranged(b, all, {}), all}, gone);
}

Term product(Term a, Term b, const Labels& keep) {
  // What one factor alone has and nobody keeps is summed first.
  const auto lonely = [&](const Term& x, const Term& other) {
    Labels gone;
    for (const char label : x.labels)
      if (!other.has(label) && keep.find(label) == Labels::npos) gone.push_back(label);
    return gone;
  };
  a = summed_over(a, lonely(a, b));
  b = summed_over(b, lonely(b, a));
  const Roles r = roles_of(a, b, keep);
  if (r.inner.empty() || !is_floating(a.x.dtype())) return stretched_product(a, b, keep);

  const Labels lead = r.batch + r.inner_rest + r.left_rest + r.right_rest;
  Shape shape;
  Tensor y;
  if (lead.empty()) {
    Shape rows;
    append_sizes(rows, a, r.left);
    if (r.left.empty()) rows.push_back(1);
    rows.push_back(size_of_all(a, r.inner));
    const Tensor left = reshape(permuted(a, r.left + r.inner).x, rows);
    y = matmul(left, as_matrices(b, a, {}, r.inner, r.right));
  } else {
    y = matmul(as_matrices(a, b, lead, r.left, r.inner), as_matrices(b, a, lead, r.inner, r.right));
    if (!r.inner_rest.empty()) {
      Dims dims;
      for (std::size_t i = 0; i < r.inner_rest.size(); ++i)
        dims.push_back(static_cast<std::int64_t>(r.batch.size() + i));
      y = sum(y, dims);
    }
    append_sizes(shape, a, r.batch + r.left_rest);
    append_sizes(shape, b, r.right_rest);
  }
  append_sizes(shape, a, r.left);
  append_sizes(shape, b, r.right);
  return {reshape(y, shape), r.batch + r.left_rest + r.right_rest + r.left + r.right};
}

}  // namespace

Tensor einsum(std::string_view text, const std::vector<Tensor>& operands) {
  if (operands.empty()) throw UsageError("einsum: no tensors were given.");
  const Equation equation = parse(text, operands);
  check(text, equation, operands);
  std::vector<Term> terms;
  for (std::size_t i = 0; i < operands.size(); ++i)
    terms.push_back(diagonals({operands[i], equation.inputs[i]}));

  Term result = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    Labels keep = equation.output;
    for (std::size_t later = i + 1; later < terms.size(); ++later) keep += terms[later].labels;
    result = product(result, terms[i], keep);
  }
  Labels gone;
  for (const char label : result.labels)
    if (equation.output.find(label) == Labels::npos) gone.push_back(label);
  return permuted(summed_over(result, gone), equation.output).x;
}

}  // namespace tessera
