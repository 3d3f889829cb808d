"""Writes mace_published_*.safetensors: models of the published code, converted, and what that code says of structures.

  python3 tests/data/mace_published.py tests/data

Each model has random weights (seed below) and is converted by scripts/import_mace.py; mace_published.safetensors holds, as
NAME/STRUCTURE/..., positions, cells, atomic numbers, and the published energy, forces and stress. fp64. Made with
mace-torch 0.3.16, e3nn 0.4.4, PyTorch 2.15.
"""

import os
import sys

import numpy as np
import torch

torch.serialization.add_safe_globals([slice])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))

import import_mace
from ase import Atoms
from e3nn import o3
from mace import data, modules, tools
from mace.tools import torch_geometric
from safetensors_file import write

ELEMENTS = [1, 8, 14]
SHARED = {
    "r_max": 3.6,
    "num_bessel": 6,
    "num_polynomial_cutoff": 5,
    "num_elements": 3,
    "MLP_irreps": o3.Irreps("5x0e"),
    "gate": torch.nn.functional.silu,
    "atomic_energies": np.array([-13.5, -430.25, -290.75]),
    "avg_num_neighbors": 7.25,
    "atomic_numbers": ELEMENTS,
    "radial_MLP": [7, 9],
    "use_reduced_cg": False,
}


def block(name):
    return modules.interaction_classes[f"RealAgnostic{name}InteractionBlock"]


def models():
    yield "residual", modules.ScaleShiftMACE(
        **SHARED,
        max_ell=3,
        correlation=3,
        num_interactions=2,
        hidden_irreps=o3.Irreps("4x0e+4x1o"),
        interaction_cls=block("Residual"),
        interaction_cls_first=block("Residual"),
        atomic_inter_scale=0.8,
        atomic_inter_shift=-0.15,
    )
    # Lengths and repulsion by covalent radii, division by a density, an agnostic first block, features up to l = 2.
    yield "density", modules.ScaleShiftMACE(
        **SHARED,
        max_ell=2,
        correlation=3,
        num_interactions=2,
        hidden_irreps=o3.Irreps("3x0e+3x1o+3x2e"),
        interaction_cls=block("DensityResidual"),
        interaction_cls_first=block("Density"),
        atomic_inter_scale=1.3,
        atomic_inter_shift=0.2,
        pair_repulsion=True,
        distance_transform="Agnesi",
    )
    yield "plain", modules.MACE(
        **SHARED,
        max_ell=3,
        correlation=2,
        num_interactions=3,
        hidden_irreps=o3.Irreps("5x0e"),
        interaction_cls=block("Residual"),
        interaction_cls_first=block(""),
    )


def reduced(state):
    """The same model as a checkpoint with fewer couplings: an orthonormal basis of the symmetric ones, as with reduced_cg."""
    state = dict(state)
    for key in [k for k in state if "U_matrix_" in k]:
        contraction, order = key.split("U_matrix_")
        n, u = int(order), state[key].numpy()
        weights = contraction + ("weights_max" if n == 3 else f"weights.{2 - n}")
        l = int(contraction.split(".")[-2])
        u = u.reshape(2 * l + 1, -1, u.shape[-1])
        even = import_mace.symmetric(u, 16, n)
        basis, sizes, _ = np.linalg.svd(even, full_matrices=False)
        basis = basis[:, sizes > 1e-10]
        state[key] = torch.tensor(basis.reshape(2 * l + 1, *[16] * n, -1))
        state[weights] = torch.einsum("ab,ebk->eak", torch.tensor(basis.T @ even), state[weights].detach())
    return state


def structures():
    rng = np.random.default_rng(5)

    def moved(atoms):
        atoms.positions += 0.06 * rng.standard_normal(atoms.positions.shape)
        return atoms

    yield "molecule", moved(Atoms("OH2Si", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0], [0.4, -0.9, 1.3]]))
    # Smaller than the cutoff: atoms see images of themselves.
    cell = [[4.9019, 0, 0], [-2.45095, 4.24517, 0], [0, 0, 3.2]]
    places = [[0.47, 0, 0.33], [0.41, 0.27, 0.75], [0.73, 0.86, 0.45], [0.1, 0.5, 0.1]]
    yield "crystal", moved(Atoms("SiO2H", scaled_positions=places, cell=cell, pbc=True))
    places = [[2.9 * (i % 2), 2.8 * (i // 2 % 2), 3.1 * (i // 4 % 2) + 1.5 * (i // 8)] for i in range(9)]
    cell = [[6.1, 0.2, 0], [0.9, 5.8, 0.3], [-0.7, 1.1, 6.4]]
    yield "tilted", moved(Atoms("O3H4Si2", places, cell=cell, pbc=True))


def published(model, atoms):
    table = tools.AtomicNumberTable(ELEMENTS)
    config = data.config_from_atoms(atoms)
    graph = data.AtomicData.from_config(config, z_table=table, cutoff=SHARED["r_max"])
    batch = next(iter(torch_geometric.dataloader.DataLoader([graph], batch_size=1)))
    return model(batch.to_dict(), compute_stress=bool(atoms.pbc.any()))


def main():
    torch.set_default_dtype(torch.float64)
    tensors = {}
    torch.manual_seed(7)
    for name, model in models():
        import_mace.convert(model, model.state_dict(), f"{sys.argv[1]}/mace_published_{name}.safetensors")
        if name == "residual":
            state = reduced(model.state_dict())
            import_mace.convert(None, state, f"{sys.argv[1]}/mace_published_reduced.safetensors", 7.25)
        for label, atoms in structures():
            out = published(model, atoms)
            at = f"{name}/{label}/"
            tensors[at + "numbers"] = atoms.numbers
            tensors[at + "positions"] = atoms.positions
            tensors[at + "cell"] = np.array(atoms.cell)
            tensors[at + "energy"] = out["energy"].detach().numpy()
            tensors[at + "forces"] = out["forces"].detach().numpy()
            if atoms.pbc.any():
                tensors[at + "stress"] = out["stress"].detach().numpy()[0]
    write(f"{sys.argv[1]}/mace_published.safetensors", {name: np.asarray(t, float) for name, t in tensors.items()})


main()
