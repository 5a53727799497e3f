"""Observers: each measures one thing while a script runs, and writes facts that the checks read.

`OBSERVERS` lists them all. Its order is the order in which they receive an event, and so the order
of their records.
"""

from __future__ import annotations

import importlib

from headway.preflight.observer import Observer

OBSERVERS = (
    "observers.model.layer_values:ActivationValues",
    "observers.model.backward_errors:AnomalyMode",
    "observers.model.logits:Attention",
    "observers.low_precision:AutocastWork",
    "observers.loss.backward_roots:BackwardRoots",
    "observers.loss.degenerate_losses:BalanceLosses",
    "observers.data.data_loaders:BatchSizes",
    "observers.model.input_dependence:InputDependence",
    "observers.model.device_use:MixedDevices",
    "observers.model.mode_layers:Dropouts",
    "observers.loss.empty_terms:EmptyTerms",
    "observers.data.epoch_order:EpochOrder",
    "observers.model.frozen_parameters:FrozenParameters",
    "observers.model.masked_gradients:MaskedGradients",
    "observers.model.future_tokens:FutureTokens",
    "observers.loss.graph_cuts:GraphCuts",
    "observers.loss.graphless_terms:GraphlessTerms",
    "observers.loss.graphless_terms:EqualSides",
    "observers.low_precision:HalfPrecisionCopies",
    "observers.manual_ranks:ManualRanks",
    "observers.wrapper_lines:WrapperLines",
    "observers.wrapper_lines:AveragedReplicas",
    "observers.model.backward_errors:InPlaceWrites",
    "observers.data.input_values:InputValues",
    "observers.model.parameter_structure:Inventory",
    "observers.model.device_use:UnusedGraphs",
    "observers.model.mode_layers:LastStepReads",
    "observers.data.data_leakage:LabelCopy",
    "observers.data.labels:Labels",
    "observers.data.label_indices:LabelIndices",
    "observers.model.linear_layers:LinearLayers",
    "observers.loss.degenerate_losses:LinearScores",
    "observers.model.weight_values:WeightLoading",
    "observers.loss.loss_calls:LossCalls",
    "observers.loss.loss_components:LossComponents",
    "observers.loss.loss_calls:LossFormulas",
    "observers.model.training_modes:TrainingModes",
    "observers.data.input_values:NonfiniteInputs",
    "observers.optimizer.optimizer_setup:OptimizerCoverage",
    "observers.optimizer.optimizer_setup:OptimizerSettings",
    "observers.model.weight_values:WeightFills",
    "observers.model.logits:OutputLogits",
    "observers.loss.output_range:OutputRange",
    "observers.model.device_use:PhaseMemory",
    "observers.optimizer.optimizer_setup:TrainingLines",
    "observers.data.repeated_samples:RepeatedSamples",
    "observers.optimizer.resumes:Resumes",
    "observers.low_precision:UpdateRounding",
    "observers.gradient_scaling:ScaledClipping",
    "observers.gradient_scaling:ScaledReadings",
    "observers.optimizer.schedules:Schedules",
    "observers.data.data_leakage:SharedRows",
    "observers.data.stored_samples:SamplerReach",
    "observers.data.stored_samples:StoredSamples",
    "observers.model.layer_values:SpectralNorms",
    "observers.loss.summed_losses:SummedLosses",
    "observers.model.parameter_structure:TiedWeights",
    "observers.model.device_use:HostTransfers",
    "observers.loss.token_targets:TokenTargets",
    "observers.loss.token_weights:TokenWeights",
    "observers.loss.token_weights:IgnoredTokens",
    "observers.loss.zero_gradients:ZeroGradientOps",
    "observers.loss.moving_targets:MovingTargets",
    "observers.loss.moving_targets:SharedTargets",
    "observers.optimizer.missed_clips:MissedClips",
    "observers.optimizer.missed_clips:ClearedGradients",
    "observers.optimizer.leftover_gradients:LeftoverGradients",
    "observers.rank_noise:RankNoise",
    "observers.optimizer.schedule_resumes:ScheduleResumes",
    "observers.model.averaged_models:AveragedModels",
    "observers.model.averaged_models:SharedModules",
    "observers.model.averaged_models:SiblingLayers",
    "observers.model.padding_trials:PaddingTrials",
    "observers.model.sequence_trials:PositionTrials",
    "trial.update_trials:UpdateTrials",
    "observers.model.parameter_structure:UnregisteredParameters",
    "observers.data.data_loaders:WorkerSeeds",
)
"""`module:Class`, below `headway.preflight`."""


def all_observers() -> list[type[Observer]]:
    """Every observer, in the order of `OBSERVERS`."""
    found: list[type[Observer]] = []
    for entry in OBSERVERS:
        module, _, name = entry.partition(":")
        found.append(getattr(importlib.import_module(f"headway.preflight.{module}"), name))
    return found
