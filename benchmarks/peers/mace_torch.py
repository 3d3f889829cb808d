"""The model, weights and atoms that benchmarks/mace.cpp writes to a folder, in mace-torch.

mace_torch.py serve THREADS: answers one line per command on standard input:
  case FOLDER DTYPE MODE -> "parameters N"; forces MODE -> "seconds T energy E"; train MODE -> "seconds T loss L"
mace_torch.py memory THREADS FOLDER DTYPE MODE STEP: bytes that one forces or train adds to the peak
Seconds are processor time on one thread, elapsed time on more.
MODE is eager or script (the whole model in TorchScript, as for LAMMPS).
"""

import contextlib
import json
import os
import sys
import time
import tomllib
import warnings

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # e3nn 0.4.4 reads its tables by pickle
warnings.filterwarnings("ignore")

import ase.io
import numpy as np
import torch

with contextlib.redirect_stdout(sys.stderr):  # optional parts that are missing are announced
    import mace
    from e3nn import o3
    from e3nn.util import jit
    from mace import data, modules, tools
    from mace.modules.loss import WeightedEnergyForcesLoss
    from mace.tools import torch_geometric

from torch_model import added_memory

KINDS = {"F64": np.float64, "F32": np.float32, "I64": np.int64}


def read_model(path):
    """Options and weights of a model that Tessera wrote."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        body = f.read()
    options = tomllib.loads(header.pop("__metadata__")["mace.options"])
    return options, {
        name: np.frombuffer(body[slice(*e["data_offsets"])], KINDS[e["dtype"]]).reshape(e["shape"])
        for name, e in header.items()
    }


def set_weights(model, layers, weights):
    """Weights of Tessera in the order and shape of the published model."""
    state = model.state_dict()

    def put(name, values):
        state[name] = torch.as_tensor(np.ascontiguousarray(values)).reshape(state[name].shape).to(state[name].dtype)

    put("node_embedding.linear.weight", weights["embedding.weight"])
    for t in range(layers):
        ours, theirs = f"interactions.{t}.", f"interactions.{t}."
        put(theirs + "linear_up.weight", weights[ours + "linear_up"])
        hidden = 0
        while f"{ours}radial.weights.{hidden}" in weights:
            put(f"{theirs}conv_tp_weights.layer{hidden}.weight", weights[f"{ours}radial.weights.{hidden}"].T)
            hidden += 1
        put(f"{theirs}conv_tp_weights.layer{hidden}.weight", weights[ours + "path_weights"])
        put(theirs + "linear.weight", weights[ours + "linear"])
        put(theirs + "skip_tp.weight", weights[ours + "skip"].transpose(0, 2, 1, 3))
        block = 0
        for l in range(sum(1 for k in state if k.startswith(f"products.{t}.") and k.endswith("weights_max"))):
            prefix = f"products.{t}.symmetric_contractions.contractions.{l}.weights"
            lower = sorted(k for k in state if k.startswith(prefix + "."))
            for name in [prefix + "_max", *lower]:
                put(name, weights[f"products.{t}.weights.{block}"])
                block += 1
        put(f"products.{t}.linear.weight", weights[f"products.{t}.linear"])
        if t + 1 < layers:
            put(f"readouts.{t}.linear.weight", weights[f"readouts.{t}.linear"])
        else:
            put(f"readouts.{t}.linear_1.weight", weights[f"readouts.{t}.hidden"].T)
            put(f"readouts.{t}.linear_2.weight", weights[f"readouts.{t}.linear"])
    model.load_state_dict(state)


def build(folder):
    o, weights = read_model(f"{folder}/model.safetensors")
    residual = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    hidden = "+".join(f"{o['channels']}x{l}{'e' if l % 2 == 0 else 'o'}" for l in range(o["max_L"] + 1))
    model = modules.ScaleShiftMACE(
        r_max=o["r_max"],
        num_bessel=o["radial_basis"],
        num_polynomial_cutoff=o["cutoff_power"],
        max_ell=o["max_ell"],
        interaction_cls=residual,
        interaction_cls_first=residual,
        num_interactions=o["layers"],
        num_elements=len(o["elements"]),
        hidden_irreps=o3.Irreps(hidden),
        MLP_irreps=o3.Irreps(f"{o['readout']}x0e"),
        gate=torch.nn.functional.silu,
        atomic_energies=np.array(o["e0"]),
        avg_num_neighbors=o["avg_num_neighbors"],
        atomic_numbers=o["elements"],
        correlation=o["correlation"],
        atomic_inter_scale=o["scale"],
        atomic_inter_shift=o["shift"],
        use_reduced_cg=False,
    )
    set_weights(model, o["layers"], weights)
    return model, o


class Case:
    def __init__(self, folder, dtype, mode):
        torch.set_default_dtype({"f64": torch.float64, "f32": torch.float32}[dtype])
        model, options = build(folder)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.model = jit.compile(model) if mode == "script" else model
        self.loss = WeightedEnergyForcesLoss(energy_weight=1.0, forces_weight=100.0)
        self.small = self.batch(f"{folder}/cell.xyz", options)
        self.large = {step: self.batch(f"{folder}/{step}.xyz", options) for step in ("forces", "train")}

    @staticmethod
    def batch(path, options):
        atoms = ase.io.read(path)
        keys = data.KeySpecification(
            info_keys={"energy": "REF_energy"}, arrays_keys={"forces": "REF_forces"}
        )
        config = data.config_from_atoms(atoms, key_specification=keys)
        one = data.AtomicData.from_config(
            config,
            z_table=tools.AtomicNumberTable(options["elements"]),
            cutoff=options["r_max"],
        )
        return next(iter(torch_geometric.dataloader.DataLoader([one], batch_size=1)))

    def forces(self, batch):
        out = self.model(batch.to_dict(), training=False, compute_force=True)
        return out["energy"].detach()[0].item()

    def train(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        out = self.model(batch.to_dict(), training=True, compute_force=True)
        loss = self.loss(pred=out, ref=batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def memory(folder, dtype, mode, step):
    case = Case(folder, dtype, mode)
    run = case.train if step == "train" else case.forces
    for _ in range(3):
        run(case.small)
    print(added_memory(lambda: run(case.large[step])), flush=True)


def serve():
    print("version", torch.__version__, "with mace-torch", mace.__version__, flush=True)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    cases = {}
    for line in sys.stdin:
        command, *rest = line.split()
        try:
            if command == "case":
                folder, dtype, mode = rest
                if (folder, dtype) != cases.get("of"):
                    cases = {"of": (folder, dtype)}
                if mode not in cases:
                    cases[mode] = Case(folder, dtype, mode)
                print("parameters", cases[mode].parameters, flush=True)
                continue
            case = cases[rest[0]]
            start = clock()
            if command == "train":
                name, value = "loss", case.train(case.large["train"])
            else:
                name, value = "energy", case.forces(case.large["forces"])
            print("seconds", clock() - start, name, repr(value), flush=True)
        except Exception as error:  # the benchmark leaves this way out
            print("error", type(error).__name__, str(error).replace("\n", " ")[:150], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    if sys.argv[1] == "serve":
        serve()
    else:
        memory(*sys.argv[3:])
