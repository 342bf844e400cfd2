"""The foreign names that our adapters rely on, in one list. tests/frameworks/test_names.py checks each of them."""

from __future__ import annotations

from .names import Name

_LOOPS = "lightning.pytorch.loops"

_LIGHTNING_TRAINER = "lightning.pytorch.trainer"

_LIGHTNING_LOG = f"{_LIGHTNING_TRAINER}.connectors.logger_connector"

_LIGHTNING = (  # `pytorch_lightning` has the same
    Name(f"{_LOOPS}.fit_loop:_FitLoop.run", ("self",), frozenset({"93956bf266235daf"})),
    Name(  # since 2.6.4 it checks nothing of a validation that is switched off; until 2.5 no interval is a time
        f"{_LOOPS}.fit_loop:_FitLoop.setup_data",
        ("self",),
        frozenset({"0d8e96a3dc118a22", "b6d3693902a24099", "44b59185fd58085c"}),
    ),
    Name(  # since 2.5.5, and before: it warns of modules in eval mode
        f"{_LOOPS}.fit_loop:_FitLoop.on_run_start", ("self",), frozenset({"50ffeb94c6ade40e", "99b7c5a2eec1275c"})
    ),
    Name(f"{_LOOPS}.fit_loop:_FitLoop.on_advance_start", ("self",), frozenset({"32c3cc3b9ae3e2fe"})),
    Name(f"{_LOOPS}.fit_loop:_FitLoop.on_run_end", ("self",)),
    Name(f"{_LOOPS}.fit_loop:_FitLoop._load_combined_loader_states", ("self",)),
    Name(
        f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.run",
        ("self", "data_fetcher"),
        frozenset({"f225cc90decae44c"}),
    ),
    Name(f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.reset", ("self",), frozenset({"85d2e1bdafbc9d56"})),
    Name(  # since 2.5.3, and before: it asks whether Lightning resumes
        f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.on_run_start",
        ("self", "data_fetcher"),
        frozenset({"338206fdb5f8c41c", "99a94bc9b4ad5ffb"}),
    ),
    Name(
        f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.on_advance_end",
        ("self", "data_fetcher"),
        frozenset({"6196c07460c1cbb6"}),
    ),
    Name(f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.done", ("self",)),
    Name(f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop._should_accumulate", ("self",)),
    Name(f"{_LOOPS}.evaluation_loop:_EvaluationLoop.setup_data", ("self",)),
    Name(f"{_LOOPS}.progress:_BaseProgress.state_dict", ("self",)),
    Name(f"{_LOOPS}.progress:_BaseProgress.load_state_dict", ("self", "state_dict")),
    Name(  # until 2.5 without `weights_only` and `enable_autolog_hparams`
        f"{_LIGHTNING_TRAINER}.trainer:Trainer._run", None, frozenset({"c3ba7bf81e4fe0e7", "fa2f6b545bb1a939"})
    ),
    Name(f"{_LIGHTNING_TRAINER}.trainer:_log_hyperparams", ("trainer",)),
    Name(f"{_LIGHTNING_TRAINER}.trainer:Trainer._run_stage", ("self",), frozenset({"159abdfcb2ab26d0"})),
    Name(
        f"{_LIGHTNING_TRAINER}.connectors.callback_connector:_CallbackConnector._attach_model_logging_functions",
        ("self",),
        frozenset({"ee35aa7d27906b22"}),
    ),
    Name(f"{_LIGHTNING_TRAINER}.connectors.checkpoint_connector:_CheckpointConnector.resume_start"),
    Name(f"{_LIGHTNING_TRAINER}.connectors.signal_connector:_SignalConnector.register_signal_handlers", ("self",)),
    Name(f"{_LIGHTNING_LOG}.logger_connector:_LoggerConnector.log_metrics", ("self", "metrics", "step")),
    Name(f"{_LIGHTNING_LOG}.result:_ResultMetric", ("metadata", "is_tensor")),
    Name(
        f"{_LIGHTNING_LOG}.result:_ResultMetric.update",
        ("self", "value", "batch_size"),
        frozenset({"523d2c4378eaa3d0"}),
    ),
    Name(
        f"{_LIGHTNING_LOG}.result:_Metadata",
        (
            *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph"),
            *("add_dataloader_idx", "dataloader_idx", "metric_attribute", "_sync"),
        ),
        frozenset({"34ac7cc2ebcbfe1a"}),
    ),
    Name(
        f"{_LIGHTNING_LOG}.result:_Sync",
        ("fn", "_should", "rank_zero_only", "_op", "_group"),
        frozenset({"5b53533232271fed"}),
    ),
    Name("lightning.pytorch.callbacks.model_checkpoint:ModelCheckpoint.file_exists", ("self", "filepath", "trainer")),
    Name(
        "lightning.pytorch.callbacks.model_checkpoint:ModelCheckpoint._save_checkpoint", ("self", "trainer", "filepath")
    ),
    Name("lightning.pytorch.loggers.logger:DummyLogger"),
    Name("lightning.pytorch.loggers.csv_logs:ExperimentWriter._check_log_dir_exists", ("self",)),
    Name("lightning.pytorch.utilities.combined_loader:CombinedLoader.flattened", ("self",)),
)

_LEARN = ("self", "total_timesteps", "callback", "log_interval", "tb_log_name", "reset_num_timesteps", "progress_bar")

_ACCELERATE_ITER = Name(  # 1.12, and 1.4: an empty loader ends, or gives None
    "accelerate.data_loader:DataLoaderShard.__iter__", ("self",), frozenset({"f6a0dc946182432d", "cf46347fd4f7cb6f"})
)

NAMES: dict[str, tuple[Name, ...]] = {
    "accelerate": (
        _ACCELERATE_ITER,
        Name("accelerate.data_loader:DataLoaderDispatcher.__iter__", ("self",), frozenset({"3bafaf4791c17a75"})),
        Name(
            "accelerate.data_loader:DataLoaderDispatcher._fetch_batches",
            ("self", "iterator"),
            frozenset({"66e12dae182f867a"}),
        ),
        Name("accelerate.data_loader:DataLoaderShard.set_epoch", ("self", "epoch")),
        Name("accelerate.data_loader:DataLoaderDispatcher.set_epoch", ("self", "epoch")),
        Name("accelerate.data_loader:DataLoaderStateMixin.end", ("self",)),
        Name("accelerate.data_loader:BatchSamplerShard"),
        Name("accelerate.data_loader:SkipBatchSampler"),
        Name("accelerate.data_loader:SkipDataLoader"),
        Name("accelerate.utils:synchronize_rng_states", ("rng_types", "generator")),
        Name("accelerate.accelerator:Accelerator._do_sync", ("self",), frozenset({"d94912027eb080f5"})),
        Name("accelerate.optimizer:AcceleratedOptimizer.step_was_skipped"),
    ),
    "jax": (
        Name("flax.nnx:Module._pytree__nodes"),
        Name("flax.nnx:Variable.get_raw_value", ("self",)),
        Name("flax.nnx:Variable.set_raw_value", ("self", "value", "_unsafe_bypass_check")),
    ),
    "keras": (
        Name(
            "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator",
            ("self",),
            frozenset({"7c534cb2253670d7"}),
        ),
        Name("keras.src.trainers.epoch_iterator:EpochIterator.catch_stop_iteration", ("self",)),
        Name(  # as it is on TensorFlow, on JAX, and on torch in 3.15 and in 3.12, and on the three in 3.11
            "keras:Model.fit",
            (
                *("self", "x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split"),
                *("validation_data", "shuffle", "class_weight", "sample_weight", "initial_epoch", "steps_per_epoch"),
                *("validation_steps", "validation_batch_size", "validation_freq"),
            ),
            frozenset(
                {
                    *("edfcb57eff6ed5ed", "38c0df52e14fe565", "cff92d2d99675837", "a5f2b557e2fd7c90"),
                    *("dd72a20588fdfcd5", "e680b31fa9f05ce0", "54b8839616f5fa6f"),
                }
            ),
        ),
        Name("keras:Model._symbolic_build", ("self", "iterator", "data_batch")),
        Name("keras:Model.metrics_variables"),
        Name("keras:Model._flatten_layers", ("self", "include_self", "recursive")),
        Name(
            "keras.src.callbacks.callback_list:CallbackList.on_train_begin",
            ("self", "logs"),
            frozenset({"e14f02466ebe39b7", "9abb48eba6c93ea5"}),
        ),
        Name("keras.src.callbacks.callback_list:CallbackList.on_epoch_begin", ("self", "epoch", "logs")),
        Name("keras.src.callbacks.callback_list:CallbackList.on_train_batch_begin", ("self", "batch", "logs")),
        Name("keras.src.callbacks.callback_list:CallbackList.on_train_batch_end", ("self", "batch", "logs")),
        Name("keras.src.callbacks.callback_list:CallbackList.on_epoch_end", ("self", "epoch", "logs")),
        Name("keras.src.callbacks.callback_list:CallbackList.on_train_end", ("self", "logs")),
        Name("keras.src.callbacks.monitor_callback:MonitorCallback._set_monitor_op", ("self",)),
        Name(
            "keras.src.callbacks.csv_logger:CSVLogger.on_epoch_end",
            ("self", "epoch", "logs"),
            frozenset({"3460a2ba98931ca4", "468b3e9f4cbf0d37"}),
        ),
        Name("keras.src.callbacks.tensorboard:TensorBoard.set_model", ("self", "model")),
        Name("keras.src.callbacks.tensorboard:TensorBoard._train_writer"),
        Name("keras.src.callbacks.tensorboard:TensorBoard._push_writer", ("self", "writer", "step")),
        Name("keras.src.callbacks.tensorboard:TensorBoard._pop_writer", ("self",)),
        Name("keras.src.callbacks.tensorboard:TensorBoard._close_writers", ("self",)),
        Name("keras.src.callbacks.tensorboard:TensorBoard._write_keras_model_summary", ("self",)),
        Name(
            "keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter.__init__",
            ("self", "x", "y", "sample_weight", "batch_size", "steps", "shuffle", "class_weight"),
            frozenset({"c18bba17c7e96824", "7e4cf97360ed86a4"}),
        ),
        Name(
            "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter.__init__",
            ("self", "x", "class_weight", "shuffle"),
        ),
        Name("keras.src.trainers.data_adapters.tf_dataset_adapter:TFDatasetAdapter.get_tf_dataset", ("self",)),
        Name("keras.src.trainers.data_adapters.array_slicing:convert_to_sliceable", ("arrays", "target_backend")),
        Name("keras.src.backend.common.global_state:get_global_attribute"),
        Name(  # 3.12 spells the attribute out where 3.13 has a constant
            "keras.src.random.seed_generator:global_seed_generator",
            (),
            frozenset({"7a7b17d883b9860b", "25678444b86162e7"}),
        ),
    ),
    "lightning": _LIGHTNING,
    "stable_baselines3": (
        # the order of rollout, log and update
        Name(
            "stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm.learn",
            _LEARN,
            frozenset({"b21b5338c3c13d0b"}),
        ),
        Name(
            "stable_baselines3.common.off_policy_algorithm:OffPolicyAlgorithm.learn",
            _LEARN,
            frozenset({"cee2093751f07535"}),
        ),
        Name("stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm.collect_rollouts"),
        Name("stable_baselines3.common.off_policy_algorithm:OffPolicyAlgorithm.collect_rollouts"),
        Name("stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm.dump_logs", ("self", "iteration")),
        Name("stable_baselines3.common.base_class:BaseAlgorithm._get_torch_save_params", ("self",)),
        Name("stable_baselines3.common.base_class:BaseAlgorithm._excluded_save_params", ("self",)),
        Name("stable_baselines3.common.callbacks:BaseCallback.on_training_start", ("self", "locals_", "globals_")),
        Name("stable_baselines3.common.logger:Logger.dump", ("self", "step")),
    ),
    "transformers": (
        Name(
            "transformers.trainer:Trainer._inner_training_loop",
            ("self", "batch_size", "args", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
            # since 5.19 and before: it notes the step at which it begins, for the mean loss
            frozenset({"68a3ebc1aaea235b", "4fc9f5f0160278d8"}),
        ),
        Name(
            "transformers.trainer:Trainer._run_epoch",
            (
                *("self", "model", "epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch"),
                *("trial", "ignore_keys_for_eval", "start_time", "resume_from_checkpoint", "epochs_trained"),
                "steps_trained_in_current_epoch",
            ),
            # 5.23, since 5.17, since 5.4 and 5.3: it learns of FSDP's gradients, of a batch sampler that knows its
            # epoch, and of a scheduler that waits for a loss
            frozenset({"28066199eba1991e", "de4852a9dfd721f9", "1831da9fe3f8ac50", "3737e673f497cf84"}),
        ),
        Name(
            "transformers.trainer:Trainer._maybe_log_save_evaluate",
            (
                *("self", "tr_loss", "grad_norm", "model", "trial", "epoch", "ignore_keys_for_eval", "start_time"),
                "learning_rate",
            ),
            frozenset({"c3945a2525b7ede2"}),
        ),
        Name(
            "transformers.trainer:Trainer._finalize_training",
            ("self", "trial", "num_train_samples", "start_time"),
            # since 5.19 and before: the mean loss is that of this call's steps, or of all steps; a run's are the same
            frozenset({"6915ca6112509126", "e4d69fe0a06e3f71"}),
        ),
        Name("transformers.trainer:Trainer.train", ("self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval")),
        Name("transformers.trainer:Trainer._evaluate", ("self", "trial", "ignore_keys_for_eval", "skip_scheduler")),
        Name("transformers.trainer:Trainer._load_rng_state", ("self", "checkpoint")),
        Name("transformers.trainer:Trainer.get_eval_dataloader", ("self", "eval_dataset")),
        Name("transformers.trainer:skip_first_batches", ("dataloader", "num_batches")),
        Name(  # until 5.5 without `kwargs`
            "transformers.trainer_callback:CallbackHandler.on_epoch_begin",
            None,
            frozenset({"92b4ab033061f17d", "d05d7d00982eace3"}),
        ),
        _ACCELERATE_ITER,
    ),
}
