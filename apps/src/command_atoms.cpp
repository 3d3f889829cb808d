#include <memory>

#include "atoms.hpp"
#include "commands.hpp"

namespace tessera::app {

namespace {

void add_potential(CLI::App& command, PotentialChoice& choice, bool option) {
  if (option) {
    command.add_option("--potential", choice.name, kPotentialHelp)->capture_default_str();
  } else {
    command.add_option("potential", choice.name, kPotentialHelp)->required();
  }
  command
      .add_option("--default-dtype,--default_dtype", choice.dtype,
                  "Element type of a learned potential: float64 or float32; default: of its file.")
      ->check(CLI::IsMember({"float64", "float32"}));
  command
      .add_option("--radial-intervals,--radial_intervals", choice.radial_intervals,
                  "Learned: radial networks run on so many intervals, edges read splines; 256: "
                  "forces change by 1e-5 of their size; 0: on every edge; default: as trained.")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace

void add_md(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "md",
      "Molecular dynamics of atoms, the box cut over the processes. Units: eV, A, fs, K, GPa.");
  const auto o = std::make_shared<MdOptions>();
  atomistic::DynamicsOptions& d = o->dynamics;
  add_potential(*command, o->potential, false);
  command->add_option("start", o->start,
                      "Extended XYZ file; velocities from its column `vel` (A/fs), else drawn.");
  command
      ->add_option("--out", o->out,
                   "Folder for thermo.jsonl, thermo.txt, trajectory.xyz, state.safetensors and "
                   "final.xyz.")
      ->required();
  command->add_option("--frame", o->frame, "Which structure of the file, from 0; -1: the last.")
      ->capture_default_str();
  command->add_option("--mesh", o->mesh, kAtomsMeshHelp);
  command->add_option("--cutting", o->cutting, "bricks, or bisection (balances the work).")
      ->capture_default_str();
  command->add_option("--ensemble", o->ensemble, "nve, langevin, nose-hoover or npt.")
      ->capture_default_str();
  command->add_option("--steps", o->steps, "Steps in all.")->capture_default_str();
  command->add_option("--dt", d.dt, "Time step, fs.")->capture_default_str();
  command->add_option("--temperature", d.temperature, "Of the thermostat, K.")
      ->capture_default_str();
  command->add_option("--start-temperature", d.start_temperature,
                      "Of velocities that are drawn, K; below 0: --temperature.");
  command->add_option("--friction", d.friction, "Of Langevin, 1/fs.")->capture_default_str();
  command->add_option("--thermostat-time", d.thermostat_time, "Nose-Hoover, fs.")
      ->capture_default_str();
  command->add_option("--pressure", d.pressure, "Of the barostat, GPa.")->capture_default_str();
  command->add_option("--barostat-time", d.barostat_time, "Of the barostat, fs.")
      ->capture_default_str();
  command->add_flag("!--anisotropic", d.isotropic, "npt: x, y and z stretch by themselves.");
  command->add_option("--skin", d.skin, "Neighbours are listed so far beyond the cutoff, A.")
      ->capture_default_str();
  command->add_option("--seed", d.seed, "Of velocities and noise.")->capture_default_str();
  command->add_option("--log-every", o->log_every, "Steps between two lines of the log.")
      ->capture_default_str();
  command->add_option("--frame-every", o->frame_every, "Steps between two frames; 0: none.")
      ->capture_default_str();
  command->add_option("--save-every", o->save_every, "Steps between two saved states.")
      ->capture_default_str();
  command->add_flag("--resume", o->resume, "Go on from the state in the folder.");
  command->callback([o, &chosen] {
    if (o->start.empty() && !o->resume)
      throw CLI::RequiredError("start (a structure, or --resume)");
    chosen = [o] { return run_md(*o); };
  });
}

void add_relax(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "relax", "Move atoms (and the box) until forces are small. Exit code 1: not converged.");
  const auto o = std::make_shared<RelaxCommand>();
  add_potential(*command, o->potential, false);
  command->add_option("start", o->start, "Extended XYZ file.")->required();
  command->add_option("--out", o->out, "Extended XYZ file to write.")->required();
  command->add_option("--frame", o->frame, "Which structure of the file, from 0; -1: the last.")
      ->capture_default_str();
  command->add_option("--mesh", o->mesh, kAtomsMeshHelp);
  command->add_option("--force", o->relax.force, "Largest force that is left, eV/A.")
      ->capture_default_str();
  command->add_option("--stress", o->relax.stress, "Largest stress that is left, eV/A^3.")
      ->capture_default_str();
  command->add_option("--steps", o->relax.steps, "At most.")->capture_default_str();
  command->add_flag("--cell", o->relax.cell, "The box changes, too.");
  command->add_option("--pressure", o->relax.pressure, "Of the box, GPa.")->capture_default_str();
  command->callback([o, &chosen] { chosen = [o] { return run_relax(*o); }; });
}

void add_generate_sio2(CLI::App& generate, Command& chosen) {
  CLI::App* const command = generate.add_subcommand(
      "sio2",
      "Silica, crystalline or melted and quenched, labelled by a potential, as extended XYZ.");
  const auto o = std::make_shared<SilicaOptions>();
  command->add_option("--out", o->out, "Extended XYZ file to write.")->required();
  command->add_option("--picture", o->picture,
                      "PNG file for the radial distributions (of the glass where both kinds).");
  command->add_option("--mesh", o->mesh, kAtomsMeshHelp);
  add_potential(*command, o->potential, true);
  command->add_option("--kind", o->kind, "quartz, amorphous or both.")->capture_default_str();
  command->add_option("--cells", o->cells, "Cells of quartz along a, b, c (9 atoms each).")
      ->capture_default_str();
  command->add_option("--frames", o->frames, "Structures in all.")->capture_default_str();
  command->add_option("--temperature", o->temperature, "Of the first frame, K.")
      ->capture_default_str();
  command
      ->add_option("--last-temperature", o->last_temperature,
                   "Of the last frame, K; linear between.")
      ->capture_default_str();
  command->add_option("--interval", o->interval, "Between frames, fs.")->capture_default_str();
  command->add_option("--settle", o->settle, "Before the first frame, fs.")->capture_default_str();
  command->add_option("--rattle", o->rattle, "Width of displacements at the start, A.")
      ->capture_default_str();
  command->add_option("--strain", o->strain, "Width of the strain of the box.")
      ->capture_default_str();
  command->add_option("--density", o->density, "Of the glass, g/cm^3.")->capture_default_str();
  command->add_option("--melt", o->melt, "Temperature of the melt, K.")->capture_default_str();
  command->add_option("--melt-time", o->melt_time, "fs.")->capture_default_str();
  command->add_option("--quench-time", o->quench_time, "fs; the longer, the fewer defects.")
      ->capture_default_str();
  command->add_option("--dt", o->dt, "Time step, fs.")->capture_default_str();
  command->add_option("--seed", o->seed, "Of all random numbers.")->capture_default_str();
  command->callback([o, &chosen] { chosen = [o] { return run_generate_sio2(*o); }; });
}

}  // namespace tessera::app
