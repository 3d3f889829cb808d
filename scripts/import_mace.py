#!/usr/bin/env python3
"""Converts a published MACE model (mace-torch, PyTorch) to the file that tessera evaluate, md and relax read.

  scripts/import_mace.py MODEL OUT.safetensors [--avg-num-neighbors X]

MODEL is a model as the training program saves it (.model), or a checkpoint (.pt), which has no mean number of neighbours:
give it. Needs the Python packages with which the model was made (mace-torch, torch, e3nn). Loading a model runs code that
lies in the file: convert files that you trust. What is refused, and how to go on: docs/mace.md.
"""

import argparse
import functools
import itertools
import json
import math
import re
import struct
import sys
import warnings

import numpy as np

SILU_SCALE = 1.6791767923989418
AGNESI = {"q": 0.9183, "p": 4.5791, "a": 1.0805}
# What holds no weights, or what is checked by other means.
IGNORED = re.compile(
    r"output_mask|_w3j_|_zeroed$|U_matrix|covalent_radii|prefactor|cutoff_fn\.|bessel_fn\.|pair_repulsion_fn\.|num_interactions|"
    r"\.conv_tp\.weight$"
)


class Refused(Exception):
    pass


# 3j symbols and the couplings of products.


def clebsch_gordan(l1, l2, l3):
    """<l1 m1 l2 m2 | l3 m3> by Racah's formula."""
    f = math.factorial
    c = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1))
    for m1 in range(-l1, l1 + 1):
        for m2 in range(-l2, l2 + 1):
            m3 = m1 + m2
            if abs(m3) > l3:
                continue
            total = 0.0
            for k in range(l1 + l2 - l3 + 1):
                terms = [k, l1 + l2 - l3 - k, l1 - m1 - k, l2 + m2 - k, l3 - l2 + m1 + k, l3 - l1 - m2 + k]
                if min(terms) >= 0:
                    total += (-1) ** k / math.prod(f(t) for t in terms)
            norm = (2 * l3 + 1) * f(l1 + l2 - l3) * f(l1 - l2 + l3) * f(l2 - l1 + l3) / f(l1 + l2 + l3 + 1)
            norm *= f(l1 + m1) * f(l1 - m1) * f(l2 + m2) * f(l2 - m2) * f(l3 + m3) * f(l3 - m3)
            c[l1 + m1, l2 + m2, l3 + m3] = math.sqrt(norm) * total
    return c


def real_basis(l):
    q = np.zeros((2 * l + 1, 2 * l + 1), complex)
    q[l, l] = 1
    for m in range(1, l + 1):
        q[l - m, l + m] = 1 / math.sqrt(2)
        q[l - m, l - m] = -1j / math.sqrt(2)
        q[l + m, l + m] = (-1) ** m / math.sqrt(2)
        q[l + m, l - m] = 1j * (-1) ** m / math.sqrt(2)
    return (-1j) ** l * q


@functools.lru_cache(maxsize=None)
def symbol(l1, l2, l3, tabulated):
    """Real 3j symbol of norm 1: signs of e3nn >= 0.5, or of the tables of older versions."""
    c = np.einsum(
        "ij,kl,nm,ikn->jlm", real_basis(l1), real_basis(l2), np.conj(real_basis(l3)), clebsch_gordan(l1, l2, l3)
    ).real
    c /= np.linalg.norm(c)
    if tabulated and (l1 + l2 + l3) % 2 == 1:
        first = symbol(*sorted((l1, l2, l3)), False).flatten()
        if first[np.abs(first) > 1e-12][0] < 0:
            c = -c
    return c


@functools.lru_cache(maxsize=None)
def trees(lmax, order, tabulated, only):
    """Couplings of `order` features up to lmax, [(l, parity, [2 l + 1, D, ..., D])]; of the last order those into `only`."""
    d = (lmax + 1) ** 2
    eye = np.eye(d)
    if order == 1:
        return [(l, (-1) ** l, eye[l * l : (l + 1) ** 2]) for l in range(lmax + 1) if only in (None, l)]
    result = []
    for left_l, left_p, left in trees(lmax, order - 1, tabulated, None):
        for l in range(lmax + 1):
            parity = left_p * (-1) ** l
            for out in range(abs(left_l - l), left_l + l + 1):
                if only is not None and (out, parity) != (only, (-1) ** only):
                    continue
                w = math.sqrt(2 * out + 1) * symbol(out, left_l, l, tabulated)
                block = np.einsum("ojm,jx->oxm", w, left.reshape(2 * left_l + 1, -1))
                whole = np.zeros((2 * out + 1, block.shape[1], d))
                whole[:, :, l * l : (l + 1) ** 2] = block
                result.append((out, parity, whole.reshape((2 * out + 1,) + (d,) * order)))
    return sorted(result, key=lambda t: t[:2])


def couplings(lmax, order, l, tabulated):
    """[2 l + 1, D^order, couplings]"""
    found = [t[2].reshape(2 * l + 1, -1) for t in trees(lmax, order, tabulated, l)]
    if not found:
        return np.zeros((2 * l + 1, (lmax + 1) ** (2 * order), 0))
    return np.stack(found, axis=-1)


def symmetric(u, d, order):
    """The part of couplings that a product of equal factors sees."""
    t = u.reshape((u.shape[0],) + (d,) * order + (u.shape[-1],))
    mean = sum(
        np.transpose(t, (0,) + tuple(1 + i for i in p) + (order + 1,)) for p in itertools.permutations(range(order))
    ) / math.factorial(order)
    return mean.reshape(-1, u.shape[-1])


# The model.


def load(path):
    """(module or None, state dict)"""
    import torch

    warnings.simplefilter("ignore")
    # The tables of e3nn 0.4.4 hold slices, which newer torch refuses by itself.
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([slice])
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=False)
    except FileNotFoundError:
        raise
    except ModuleNotFoundError as e:
        raise Refused(f"{path} needs the Python package {e.name}. Install the packages that it was made with.")
    except Exception as e:
        raise Refused(f"{path} is no file of PyTorch ({type(e).__name__}: {e}). Give a .model or .pt file.")
    if isinstance(loaded, torch.jit.ScriptModule):
        raise Refused(f"{path} is compiled for use in another program. Give the .model file that it was made from.")
    if isinstance(loaded, torch.nn.Module):
        return loaded, loaded.state_dict()
    if isinstance(loaded, dict):
        state = loaded.get("model", loaded)
        if isinstance(state, torch.nn.Module):
            return state, state.state_dict()
        if isinstance(state, dict) and "atomic_energies_fn.atomic_energies" in state:
            return None, state
    raise Refused(f"{path} holds no MACE model. Give a .model file, or a checkpoint.")


def check_module(m):
    """Refuses what the tensors do not show."""
    if type(m).__name__ not in ("MACE", "ScaleShiftMACE"):
        raise Refused(f"the model is a {type(m).__name__}. Known are MACE and ScaleShiftMACE.")
    for name in ("cueq_config", "oeq_config"):
        configs = [getattr(b, name, None) for b in list(m.interactions) + list(m.products)]
        if any(c is not None and getattr(c, "enabled", True) for c in configs):
            tool = "mace_cueq_to_e3nn" if name == "cueq_config" else "mace_oeq_to_e3nn"
            raise Refused(f"the weights lie in the order of another library ({name}). Convert them with {tool} first.")
    heads = list(getattr(m, "heads", None) or ["Default"])
    if len(heads) > 1:
        raise Refused(f"the model has {len(heads)} heads ({', '.join(heads)}). Keep one with mace_select_head first.")
    if not getattr(m, "apply_cutoff", True):
        raise Refused("the radial basis is not multiplied by the cutoff (apply_cutoff=False), which is not known here.")
    for flag in ("use_so3", "use_agnostic_product", "use_last_readout_only", "use_edge_irreps_first"):
        if getattr(m, flag, False):
            raise Refused(f"the model was made with {flag}=True, which is not known here.")
    if getattr(m, "edge_irreps", None) is not None:
        raise Refused("the model was made with edge_irreps, which is not known here.")
    if hasattr(m, "joint_embedding"):
        raise Refused("the model embeds more than elements (embedding_specs), which is not known here.")
    basis = type(m.radial_embedding.bessel_fn).__name__
    if basis != "BesselBasis":
        raise Refused(f"the radial basis is a {basis}. Known is BesselBasis.")
    transform = type(getattr(m.radial_embedding, "distance_transform", None)).__name__
    if transform not in ("NoneType", "AgnesiTransform"):
        raise Refused(f"the distance transform is a {transform}. Known are none and AgnesiTransform.")
    known = r"RealAgnostic(Density)?(Residual)?InteractionBlock"
    for i, block in enumerate(m.interactions):
        name = type(block).__name__
        if not re.fullmatch(known, name) or (i > 0 and "Residual" not in name):
            raise Refused(
                f"interaction {i} is a {name}. Known are RealAgnosticResidualInteractionBlock and its Density form, in the "
                "first layer also those without Residual."
            )
    if len(m.interactions) < 2:
        raise Refused("the model has one interaction, whose readout is linear. Known are two and more.")
    orders = {c.correlation for p in m.products for c in p.symmetric_contractions.contractions}
    if len(orders) > 1:
        raise Refused(f"the correlation is {sorted(orders)} by layer. Known is one for all.")
    features = m.products[0].linear.irreps_out
    if [(ir.l, ir.p) for _, ir in features] != [(l, (-1) ** l) for l in range(len(features))]:
        raise Refused(f"features are {features}. Known are those of natural parity, 0e + 1o + 2e + ...")
    if len({mul for mul, _ in features}) > 1:
        raise Refused(f"features are {features}. Known are as many channels for each l.")
    if m.products[-1].linear.irreps_out.lmax > 0:
        raise Refused("the last layer keeps more than scalars (keep_last_layer_irreps=True), which is not known here.")
    last = m.readouts[-1]
    if type(last).__name__ != "NonLinearReadoutBlock":
        raise Refused(f"the last readout is a {type(last).__name__}. Known is NonLinearReadoutBlock.")
    act = [a for a in getattr(last.non_linearity, "acts", []) if a is not None]
    function = getattr(act[0], "f", None) if act else None
    if getattr(function, "__name__", "none") != "silu":
        raise Refused(f"the gate of the last readout is {getattr(function, '__name__', 'none')}. Known is silu.")
    if abs(act[0].cst - SILU_SCALE) > 1e-9:
        raise Refused(f"silu is scaled by {act[0].cst}, not by {SILU_SCALE} (another version of e3nn).")


def paths(l_in, lmax):
    return [
        (l1, l2, l3)
        for l3 in range(lmax + 1)
        for l1 in range(l_in + 1)
        for l2 in range(abs(l1 - l3), min(lmax, l1 + l3) + 1, 2)
    ]


class Converter:
    def __init__(self, module, state, avg_num_neighbors):
        self.module = module
        self.state = {k: v.detach().cpu() for k, v in state.items()}
        self.out = {}
        self.options = {}
        self.bases = {}
        if module is not None:
            check_module(module)
            if avg_num_neighbors is None:
                avg_num_neighbors = float(module.interactions[0].avg_num_neighbors)
        self.dtype = "<f4" if str(self.state["node_embedding.linear.weight"].dtype) == "torch.float32" else "<f8"
        self.neighbors = avg_num_neighbors

    def has(self, key):
        return key in self.state

    def get(self, key):
        if key not in self.state:
            raise Refused(f"the model has no {key}, so it is none that is known here.")
        return self.state[key].double().numpy()

    def take(self, key, shape):
        value = self.get(key)
        if value.size != math.prod(shape):
            raise Refused(
                f"{key} has {value.size} numbers, not {math.prod(shape)} (irreps that are not K x l with natural parity, say)."
            )
        del self.state[key]
        return value.reshape(shape)

    def put(self, name, value):
        self.out[name] = np.ascontiguousarray(value, self.dtype)

    def convert(self):
        o = self.options
        numbers = [int(z) for z in self.take("atomic_numbers", (self.state["atomic_numbers"].numel(),))]
        order = np.argsort(numbers)
        e = len(numbers)
        layers = int(self.get("num_interactions"))
        if layers < 2:
            raise Refused("the model has one interaction, whose readout is linear. Known are two and more.")
        k = self.state["node_embedding.linear.weight"].numel() // e
        first = "products.0.symmetric_contractions.contractions."
        max_l = sum(1 for key in self.state if re.fullmatch(re.escape(first) + r"\d+\.weights_max", key)) - 1
        d = self.get(first + "0.U_matrix_1").shape[-2]
        lmax = math.isqrt(d) - 1
        nu = sum(1 for key in self.state if key.startswith(first + "0.U_matrix_"))
        if (lmax + 1) ** 2 != d or max_l < 0 or max_l > lmax:
            raise Refused(f"messages have {d} components and features {max_l + 1} irreps: not one of each l, natural parity.")
        if nu > 3:
            raise Refused(f"products of {nu} messages (correlation). Known are up to 3.")
        r_max = float(self.take("r_max", ()))
        bessel = self.get("radial_embedding.bessel_fn.bessel_weights")
        nb = bessel.size
        if not np.allclose(bessel, np.pi / r_max * np.arange(1, nb + 1), rtol=1e-5):
            raise Refused("the waves of the Bessel functions were trained. Known are n pi / r_max.")
        agnesi = self.has("radial_embedding.distance_transform.a")
        if agnesi:
            for name, value in AGNESI.items():
                if abs(float(self.take("radial_embedding.distance_transform." + name, ())) - value) > 1e-5:
                    raise Refused(f"{name} of the Agnesi transform was trained. Known is {value}.")
        density = [self.has(f"interactions.{t}.density_fn.layer0.weight") for t in range(layers)]
        if any(density) != all(density):
            raise Refused("some interactions divide by a density and some do not. Known is all or none.")
        if self.neighbors is None and not density[0]:
            raise Refused(
                "a checkpoint does not say the mean number of neighbours. Give --avg-num-neighbors (the log of the training "
                "has it), or the .model file."
            )
        e0 = self.get("atomic_energies_fn.atomic_energies")
        del self.state["atomic_energies_fn.atomic_energies"]
        if e0.size != e:
            raise Refused(f"the model has {e0.size // e} heads. Keep one with mace_select_head first.")
        scale, shift = 1.0, 0.0
        if self.has("scale_shift.scale"):
            scale, shift = (float(self.take("scale_shift." + n, (1,))[0]) for n in ("scale", "shift"))
        mlp = []
        while self.has(f"interactions.0.conv_tp_weights.layer{len(mlp) + 1}.weight"):
            mlp.append(self.get(f"interactions.0.conv_tp_weights.layer{len(mlp)}.weight").shape[1])
        agnostic = self.state["interactions.0.skip_tp.weight"].numel() == (lmax + 1) * k * e * k
        if self.module is not None:
            agnostic = "Residual" not in type(self.module.interactions[0]).__name__
        readout = self.state[f"readouts.{layers - 1}.linear_1.weight"].numel() // k

        self.put("embedding.weight", self.take("node_embedding.linear.weight", (e, k))[order])
        for t in range(layers):
            l_in = 0 if t == 0 else max_l
            l_out = 0 if t == layers - 1 else max_l
            self.interaction(t, k, e, order, nb, mlp, l_in, l_out, lmax, agnostic and t == 0, density[0])
            self.product(t, k, e, order, lmax, l_out, nu)
            at, to = f"readouts.{t}.", f"readouts.{t}."
            if t < layers - 1:
                self.put(to + "linear", self.take(at + "linear.weight", (k, 1)).T)
            else:
                self.put(to + "hidden", self.take(at + "linear_1.weight", (k, readout)).T)
                self.put(to + "linear", self.take(at + "linear_2.weight", (readout, 1)).T)
        for key, value in self.state.items():
            if value.numel() > 0 and not IGNORED.search(key):
                raise Refused(f"the model has {key}, which is not known here.")

        o["elements"] = [numbers[i] for i in order]
        o["r_max"] = r_max
        o["channels"] = k
        o["max_L"] = max_l
        o["max_ell"] = lmax
        o["correlation"] = nu
        o["layers"] = layers
        o["radial_basis"] = nb
        o["cutoff_power"] = int(self.get("radial_embedding.cutoff_fn.p"))
        o["radial_mlp"] = mlp
        o["readout"] = readout
        o["first_block"] = "agnostic" if agnostic else "residual"
        o["density"] = density[0]
        o["agnesi"] = agnesi
        o["pair_repulsion"] = self.has("pair_repulsion_fn.c")
        o["couplings"] = self.bases.get("basis", "full")
        o["e0"] = [float(x) for x in e0.reshape(-1)[order]]
        o["scale"] = scale
        o["shift"] = shift
        o["avg_num_neighbors"] = self.neighbors or 1.0

    def interaction(self, t, k, e, order, nb, mlp, l_in, l_out, lmax, agnostic, density):
        at, to = f"interactions.{t}.", f"interactions.{t}."
        p = len(paths(l_in, lmax))
        self.put(to + "linear_up", self.take(at + "linear_up.weight", (l_in + 1, k, k)))
        sizes = [nb] + mlp + [p * k]
        for i in range(len(mlp)):
            w = self.take(f"{at}conv_tp_weights.layer{i}.weight", (sizes[i], sizes[i + 1]))
            self.put(f"{to}radial.weights.{i}", w.T)
        self.put(to + "path_weights", self.take(f"{at}conv_tp_weights.layer{len(mlp)}.weight", tuple(sizes[-2:])))
        self.put(to + "linear", self.take(at + "linear.weight", (p, k, k)))
        skips = lmax + 1 if agnostic else min(l_in, l_out) + 1
        skip = self.take(at + "skip_tp.weight", (skips, k, e, k))
        self.put(to + "skip", skip.transpose(0, 2, 1, 3)[:, order])
        if density:
            self.put(to + "density", self.take(at + "density_fn.layer0.weight", (nb, 1)).T)

    def product(self, t, k, e, order, lmax, l_out, nu):
        at, to = f"products.{t}.", f"products.{t}."
        block = 0
        for l in range(l_out + 1):
            c = f"{at}symmetric_contractions.contractions.{l}."
            for n in range(nu, 0, -1):
                key = c + ("weights_max" if n == nu else f"weights.{nu - n - 1}")
                u = self.get(f"{c}U_matrix_{n}")
                u = u.reshape(2 * l + 1, -1, u.shape[-1])
                weights = self.take(key, (e, u.shape[-1], k))
                weights = self.in_basis(u, weights, lmax, n, l)
                self.put(f"{to}weights.{block}", weights[order])
                block += 1
        self.put(to + "linear", self.take(at + "linear.weight", (l_out + 1, k, k)))

    def in_basis(self, u, weights, lmax, n, l):
        """The weights of the couplings u of the file for couplings that are known here: the same ones where they are."""
        d = (lmax + 1) ** 2
        if u.shape[1] != d**n:
            raise Refused(f"products of {n} messages have {u.shape[1]} components (correlation must be the same in all layers).")
        for name, tabulated in (("tabulated", True), ("full", False)):
            if self.bases.get("basis", name) != name:
                continue
            known = couplings(lmax, n, l, tabulated)
            if known.shape[-1] == 0 and not u.any():
                return weights[:, :0]
            if known.shape == u.shape and np.abs(known - u).max() < 1e-5:
                if np.abs(known - couplings(lmax, n, l, not tabulated)).max() > 1e-5:
                    self.bases["basis"] = name  # signs differ, so this says which they are
                return weights
        # Another basis of the same products: in terms of those known here, by least squares.
        known = couplings(lmax, n, l, self.bases.setdefault("basis", "full") == "tabulated")
        ours, theirs = symmetric(known, d, n), symmetric(u, d, n)
        change = np.linalg.lstsq(ours, theirs, rcond=1e-10)[0]
        if np.abs(ours @ change - theirs).max() > 1e-5:
            raise Refused(f"the products of {n} messages into l = {l} are none of natural parity.")
        return np.einsum("ab,ebk->eak", change, weights)

    def toml(self):
        def text(v):
            if isinstance(v, bool):
                return "true" if v else "false"
            if isinstance(v, list):
                return "[" + ", ".join(text(x) for x in v) + "]"
            return json.dumps(v) if isinstance(v, str) else repr(v)

        return "".join(f"{key} = {text(value)}\n" for key, value in self.options.items())

    def write(self, path):
        header = {"__metadata__": {"tessera.model": "mace", "mace.options": self.toml()}}
        data, at = [], 0
        for name, value in self.out.items():
            raw = value.tobytes()
            kind = "F32" if self.dtype == "<f4" else "F64"
            header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [at, at + len(raw)]}
            data.append(raw)
            at += len(raw)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def convert(module, state, path, avg_num_neighbors=None):
    """Writes the model to `path`; returns its options."""
    converter = Converter(module, state, avg_num_neighbors)
    converter.convert()
    converter.write(path)
    return converter.options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--avg-num-neighbors", type=float)
    args = parser.parse_args()
    try:
        options = convert(*load(args.model), args.out, args.avg_num_neighbors)
    except Refused as e:
        sys.exit(f"import_mace: {e}")
    except OSError as e:
        sys.exit(f"import_mace: {e.filename}: {e.strerror}.")
    size = {k: options[k] for k in ("channels", "max_L", "max_ell", "correlation", "layers", "couplings")}
    print(f"{args.out}: elements {options['elements']}, r_max {options['r_max']:g}, {size}")


if __name__ == "__main__":
    main()
