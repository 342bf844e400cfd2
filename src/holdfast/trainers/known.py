"""A list of the foreign names that the adapters rely on. tests/frameworks/test_names.py checks each
of them.
"""

from __future__ import annotations

from .names import ForeignName

_LOOPS = "lightning.pytorch.loops"

_LIGHTNING_TRAINER = "lightning.pytorch.trainer"

_LIGHTNING_LOG = f"{_LIGHTNING_TRAINER}.connectors.logger_connector"

_LIGHTNING = (  # `pytorch_lightning` has the same
    ForeignName(f"{_LOOPS}.fit_loop:_FitLoop.run", ("self",), frozenset({"93956bf266235daf"})),
    # since 2.6.4 it checks nothing of a validation that is switched off; until 2.5 no interval is a
    # time
    ForeignName(
        f"{_LOOPS}.fit_loop:_FitLoop.setup_data",
        ("self",),
        frozenset({"0d8e96a3dc118a22", "b6d3693902a24099", "44b59185fd58085c"}),
    ),
    ForeignName(  # since 2.5.5, and before: it warns of modules in eval mode
        f"{_LOOPS}.fit_loop:_FitLoop.on_run_start",
        ("self",),
        frozenset({"50ffeb94c6ade40e", "99b7c5a2eec1275c"}),
    ),
    ForeignName(
        f"{_LOOPS}.fit_loop:_FitLoop.on_advance_start", ("self",), frozenset({"32c3cc3b9ae3e2fe"})
    ),
    ForeignName(f"{_LOOPS}.fit_loop:_FitLoop.on_run_end", ("self",)),
    ForeignName(f"{_LOOPS}.fit_loop:_FitLoop._load_combined_loader_states", ("self",)),
    ForeignName(
        f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.run",
        ("self", "data_fetcher"),
        frozenset({"f225cc90decae44c"}),
    ),
    ForeignName(
        f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.reset",
        ("self",),
        frozenset({"85d2e1bdafbc9d56"}),
    ),
    ForeignName(  # since 2.5.3, and before: it asks whether Lightning resumes
        f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.on_run_start",
        ("self", "data_fetcher"),
        frozenset({"338206fdb5f8c41c", "99a94bc9b4ad5ffb"}),
    ),
    ForeignName(
        f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.on_advance_end",
        ("self", "data_fetcher"),
        frozenset({"6196c07460c1cbb6"}),
    ),
    ForeignName(f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop.done", ("self",)),
    ForeignName(f"{_LOOPS}.training_epoch_loop:_TrainingEpochLoop._should_accumulate", ("self",)),
    ForeignName(f"{_LOOPS}.progress:_BaseProgress.state_dict", ("self",)),
    ForeignName(f"{_LOOPS}.progress:_BaseProgress.load_state_dict", ("self", "state_dict")),
    ForeignName(  # until 2.5 without `weights_only` and `enable_autolog_hparams`
        f"{_LIGHTNING_TRAINER}.trainer:Trainer._run",
        None,
        frozenset({"c3ba7bf81e4fe0e7", "fa2f6b545bb1a939"}),
    ),
    ForeignName(f"{_LIGHTNING_TRAINER}.trainer:_log_hyperparams", ("trainer",)),
    ForeignName(
        f"{_LIGHTNING_TRAINER}.trainer:Trainer._run_stage",
        ("self",),
        frozenset({"159abdfcb2ab26d0"}),
    ),
    ForeignName(
        f"{_LIGHTNING_TRAINER}.connectors.callback_connector:_CallbackConnector._attach_model_logging_functions",
        ("self",),
        frozenset({"ee35aa7d27906b22"}),
    ),
    ForeignName(
        f"{_LIGHTNING_TRAINER}.connectors.checkpoint_connector:_CheckpointConnector.resume_start"
    ),
    ForeignName(
        f"{_LIGHTNING_TRAINER}.connectors.signal_connector:_SignalConnector.register_signal_handlers",
        ("self",),
    ),
    ForeignName(
        f"{_LIGHTNING_LOG}.logger_connector:_LoggerConnector.log_metrics",
        ("self", "metrics", "step"),
    ),
    ForeignName(f"{_LIGHTNING_LOG}.result:_ResultMetric", ("metadata", "is_tensor")),
    ForeignName(
        f"{_LIGHTNING_LOG}.result:_ResultMetric.update",
        ("self", "value", "batch_size"),
        frozenset({"523d2c4378eaa3d0"}),
    ),
    ForeignName(
        f"{_LIGHTNING_LOG}.result:_Metadata",
        (
            *(
                "fx",
                "name",
                "prog_bar",
                "logger",
                "on_step",
                "on_epoch",
                "reduce_fx",
                "enable_graph",
            ),
            *("add_dataloader_idx", "dataloader_idx", "metric_attribute", "_sync"),
        ),
        frozenset({"34ac7cc2ebcbfe1a"}),
    ),
    ForeignName(
        f"{_LIGHTNING_LOG}.result:_Sync",
        ("fn", "_should", "rank_zero_only", "_op", "_group"),
        frozenset({"5b53533232271fed"}),
    ),
    ForeignName(
        "lightning.pytorch.callbacks.model_checkpoint:ModelCheckpoint.file_exists",
        ("self", "filepath", "trainer"),
    ),
    ForeignName(
        "lightning.pytorch.callbacks.model_checkpoint:ModelCheckpoint._save_checkpoint",
        ("self", "trainer", "filepath"),
    ),
    ForeignName("lightning.pytorch.loggers.logger:DummyLogger"),
    ForeignName(
        "lightning.pytorch.loggers.csv_logs:ExperimentWriter._check_log_dir_exists", ("self",)
    ),
    ForeignName("lightning.pytorch.utilities.combined_loader:CombinedLoader.flattened", ("self",)),
)

_LEARN = (
    "self",
    "total_timesteps",
    "callback",
    "log_interval",
    "tb_log_name",
    "reset_num_timesteps",
    "progress_bar",
)

_ACCELERATE_ITER = ForeignName(  # 1.12, and 1.4: an empty loader ends, or gives None
    "accelerate.data_loader:DataLoaderShard.__iter__",
    ("self",),
    frozenset({"f6a0dc946182432d", "cf46347fd4f7cb6f"}),
)

NAMES: dict[str, tuple[ForeignName, ...]] = {
    "accelerate": (
        _ACCELERATE_ITER,
        ForeignName(
            "accelerate.data_loader:DataLoaderDispatcher.__iter__",
            ("self",),
            frozenset({"3bafaf4791c17a75"}),
        ),
        ForeignName(
            "accelerate.data_loader:DataLoaderDispatcher._fetch_batches",
            ("self", "iterator"),
            frozenset({"66e12dae182f867a"}),
        ),
        ForeignName("accelerate.data_loader:DataLoaderShard.set_epoch", ("self", "epoch")),
        ForeignName("accelerate.data_loader:DataLoaderDispatcher.set_epoch", ("self", "epoch")),
        ForeignName("accelerate.data_loader:DataLoaderStateMixin.end", ("self",)),
        ForeignName("accelerate.data_loader:BatchSamplerShard"),
        ForeignName("accelerate.data_loader:SkipBatchSampler"),
        ForeignName("accelerate.data_loader:SkipDataLoader"),
        ForeignName("accelerate.utils:synchronize_rng_states", ("rng_types", "generator")),
        ForeignName(
            "accelerate.accelerator:Accelerator._do_sync",
            ("self",),
            frozenset({"d94912027eb080f5"}),
        ),
        ForeignName("accelerate.optimizer:AcceleratedOptimizer.step_was_skipped"),
    ),
    "jax": (
        ForeignName("flax.nnx:Module._pytree__nodes"),
        ForeignName("flax.nnx:Variable.get_raw_value", ("self",)),
        ForeignName("flax.nnx:Variable.set_raw_value", ("self", "value", "_unsafe_bypass_check")),
    ),
    "keras": (
        ForeignName(
            "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator",
            ("self",),
            frozenset({"7c534cb2253670d7"}),
        ),
        ForeignName(
            "keras.src.trainers.epoch_iterator:EpochIterator.catch_stop_iteration", ("self",)
        ),
        # as it is on TensorFlow, on JAX, and on torch in 3.15 and in 3.12, and on the three in 3.11
        ForeignName(
            "keras:Model.fit",
            (
                *(
                    "self",
                    "x",
                    "y",
                    "batch_size",
                    "epochs",
                    "verbose",
                    "callbacks",
                    "validation_split",
                ),
                *(
                    "validation_data",
                    "shuffle",
                    "class_weight",
                    "sample_weight",
                    "initial_epoch",
                    "steps_per_epoch",
                ),
                *("validation_steps", "validation_batch_size", "validation_freq"),
            ),
            frozenset(
                {
                    *(
                        "edfcb57eff6ed5ed",
                        "38c0df52e14fe565",
                        "cff92d2d99675837",
                        "a5f2b557e2fd7c90",
                    ),
                    *("dd72a20588fdfcd5", "e680b31fa9f05ce0", "54b8839616f5fa6f"),
                }
            ),
        ),
        ForeignName("keras:Model._symbolic_build", ("self", "iterator", "data_batch")),
        ForeignName("keras:Model.metrics_variables"),
        ForeignName("keras:Model._flatten_layers", ("self", "include_self", "recursive")),
        ForeignName(
            "keras.src.callbacks.callback_list:CallbackList.on_train_begin",
            ("self", "logs"),
            frozenset({"e14f02466ebe39b7", "9abb48eba6c93ea5"}),
        ),
        ForeignName(
            "keras.src.callbacks.callback_list:CallbackList.on_epoch_begin",
            ("self", "epoch", "logs"),
        ),
        ForeignName(
            "keras.src.callbacks.callback_list:CallbackList.on_train_batch_begin",
            ("self", "batch", "logs"),
        ),
        ForeignName(
            "keras.src.callbacks.callback_list:CallbackList.on_train_batch_end",
            ("self", "batch", "logs"),
        ),
        ForeignName(
            "keras.src.callbacks.callback_list:CallbackList.on_epoch_end", ("self", "epoch", "logs")
        ),
        ForeignName(
            "keras.src.callbacks.callback_list:CallbackList.on_train_end", ("self", "logs")
        ),
        ForeignName(
            "keras.src.callbacks.monitor_callback:MonitorCallback._set_monitor_op", ("self",)
        ),
        ForeignName(
            "keras.src.callbacks.csv_logger:CSVLogger.on_epoch_end",
            ("self", "epoch", "logs"),
            frozenset({"3460a2ba98931ca4", "468b3e9f4cbf0d37"}),
        ),
        ForeignName("keras.src.callbacks.tensorboard:TensorBoard.set_model", ("self", "model")),
        ForeignName("keras.src.callbacks.tensorboard:TensorBoard._train_writer"),
        ForeignName(
            "keras.src.callbacks.tensorboard:TensorBoard._push_writer", ("self", "writer", "step")
        ),
        ForeignName("keras.src.callbacks.tensorboard:TensorBoard._pop_writer", ("self",)),
        ForeignName("keras.src.callbacks.tensorboard:TensorBoard._close_writers", ("self",)),
        ForeignName(
            "keras.src.callbacks.tensorboard:TensorBoard._write_keras_model_summary", ("self",)
        ),
        ForeignName(
            "keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter.__init__",
            ("self", "x", "y", "sample_weight", "batch_size", "steps", "shuffle", "class_weight"),
            frozenset({"c18bba17c7e96824", "7e4cf97360ed86a4"}),
        ),
        ForeignName(
            "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter.__init__",
            ("self", "x", "class_weight", "shuffle"),
        ),
        ForeignName(
            "keras.src.trainers.data_adapters.tf_dataset_adapter:TFDatasetAdapter.get_tf_dataset",
            ("self",),
        ),
        ForeignName(
            "keras.src.trainers.data_adapters.array_slicing:convert_to_sliceable",
            ("arrays", "target_backend"),
        ),
        ForeignName("keras.src.backend.common.global_state:get_global_attribute"),
        ForeignName(  # 3.12 spells the attribute out where 3.13 has a constant
            "keras.src.random.seed_generator:global_seed_generator",
            (),
            frozenset({"7a7b17d883b9860b", "25678444b86162e7"}),
        ),
    ),
    "catboost": (
        ForeignName(  # 1.2.10, and 1.2.8
            "catboost.core:CatBoost._prepare_train_params",
            None,
            frozenset({"f65346c3b6888184", "9feae15d4f79e031"}),
        ),
        ForeignName(
            "catboost.core:_CatBoostBase._train",
            ("self", "train_pool", "test_pool", "params", "allow_clear_pool", "init_model"),
            frozenset({"a09165952b54f662"}),
        ),
        ForeignName(
            "catboost.core:_TrainCallbacksWrapper.after_iteration",
            ("self", "info"),
            frozenset({"364599d538e47d0a"}),
        ),
    ),
    "lightgbm": (
        ForeignName(
            "lightgbm.engine:train",
            None,
            frozenset({"b40dc3972f6d4044", "fdd5c762e253d9ab"}),
        ),
        ForeignName("lightgbm.basic:Dataset._set_predictor", ("self", "predictor")),
        ForeignName("lightgbm.basic:Dataset.set_field", ("self", "field_name", "data")),
        ForeignName("lightgbm.basic:_InnerPredictor.from_booster"),
    ),
    "lightning": _LIGHTNING,
    "stable_baselines3": (
        # the order of rollout, log and update
        ForeignName(
            "stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm.learn",
            _LEARN,
            frozenset({"b21b5338c3c13d0b"}),
        ),
        ForeignName(
            "stable_baselines3.common.off_policy_algorithm:OffPolicyAlgorithm.learn",
            _LEARN,
            frozenset({"cee2093751f07535"}),
        ),
        ForeignName(
            "stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm.collect_rollouts"
        ),
        ForeignName(
            "stable_baselines3.common.off_policy_algorithm:OffPolicyAlgorithm.collect_rollouts"
        ),
        ForeignName(
            "stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm.dump_logs",
            ("self", "iteration"),
        ),
        ForeignName(
            "stable_baselines3.common.base_class:BaseAlgorithm._get_torch_save_params", ("self",)
        ),
        ForeignName(
            "stable_baselines3.common.base_class:BaseAlgorithm._excluded_save_params", ("self",)
        ),
        ForeignName(
            "stable_baselines3.common.callbacks:BaseCallback.on_training_start",
            ("self", "locals_", "globals_"),
        ),
        ForeignName("stable_baselines3.common.logger:Logger.dump", ("self", "step")),
    ),
    "transformers": (
        ForeignName(
            "transformers.trainer:Trainer._inner_training_loop",
            (
                "self",
                "batch_size",
                "args",
                "resume_from_checkpoint",
                "trial",
                "ignore_keys_for_eval",
            ),
            # since 5.19 and before: it notes the step at which it begins, for the mean loss
            frozenset({"68a3ebc1aaea235b", "4fc9f5f0160278d8"}),
        ),
        ForeignName(
            "transformers.trainer:Trainer._run_epoch",
            (
                *(
                    "self",
                    "model",
                    "epoch",
                    "train_dataloader",
                    "steps_in_epoch",
                    "num_update_steps_per_epoch",
                ),
                *(
                    "trial",
                    "ignore_keys_for_eval",
                    "start_time",
                    "resume_from_checkpoint",
                    "epochs_trained",
                ),
                "steps_trained_in_current_epoch",
            ),
            # 5.23, since 5.17, since 5.4 and 5.3: it learns of FSDP's gradients, of a batch sampler
            # that knows its epoch, and of a scheduler that waits for a loss
            frozenset(
                {"28066199eba1991e", "de4852a9dfd721f9", "1831da9fe3f8ac50", "3737e673f497cf84"}
            ),
        ),
        ForeignName(
            "transformers.trainer:Trainer._maybe_log_save_evaluate",
            (
                *(
                    "self",
                    "tr_loss",
                    "grad_norm",
                    "model",
                    "trial",
                    "epoch",
                    "ignore_keys_for_eval",
                    "start_time",
                ),
                "learning_rate",
            ),
            frozenset({"c3945a2525b7ede2"}),
        ),
        ForeignName(
            "transformers.trainer:Trainer._finalize_training",
            ("self", "trial", "num_train_samples", "start_time"),
            # since 5.19 and before: the mean loss is that of this call's steps, or of all steps; a
            # run's are the same
            frozenset({"6915ca6112509126", "e4d69fe0a06e3f71"}),
        ),
        ForeignName(
            "transformers.trainer:Trainer.train",
            ("self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
        ),
        ForeignName(
            "transformers.trainer:Trainer._evaluate",
            ("self", "trial", "ignore_keys_for_eval", "skip_scheduler"),
        ),
        ForeignName("transformers.trainer:Trainer._load_rng_state", ("self", "checkpoint")),
        ForeignName("transformers.trainer:Trainer.get_eval_dataloader", ("self", "eval_dataset")),
        ForeignName("transformers.trainer:skip_first_batches", ("dataloader", "num_batches")),
        ForeignName(  # until 5.5 without `kwargs`
            "transformers.trainer_callback:CallbackHandler.on_epoch_begin",
            None,
            frozenset({"92b4ab033061f17d", "d05d7d00982eace3"}),
        ),
        _ACCELERATE_ITER,
    ),
    "ultralytics": (
        ForeignName(
            "ultralytics.engine.trainer:BaseTrainer._do_train",
            ("self",),
            frozenset({"25826849f9d3faf2"}),
        ),
        ForeignName(
            "ultralytics.engine.trainer:BaseTrainer._setup_train",
            ("self",),
            frozenset({"cf4d3a839cdb524e"}),
        ),
        ForeignName(
            "ultralytics.data.augment:Mosaic.get_indexes",
            ("self",),
            frozenset({"a3864454beb4cf02"}),
        ),
        ForeignName("ultralytics.engine.trainer:BaseTrainer._build_train_pipeline", ("self",)),
        ForeignName("ultralytics.engine.trainer:BaseTrainer.preprocess_batch", ("self", "batch")),
        ForeignName("ultralytics.engine.trainer:BaseTrainer.optimizer_step", ("self",)),
        ForeignName(
            "ultralytics.engine.trainer:BaseTrainer._handle_nan_recovery", ("self", "epoch")
        ),
        ForeignName("ultralytics.engine.trainer:BaseTrainer.final_eval", ("self",)),
        ForeignName("ultralytics.engine.trainer:TQDM"),
        ForeignName("ultralytics.engine.model:Model._smart_load", ("self", "key")),
    ),
    "xgboost": (
        ForeignName(
            "xgboost.training:train",
            None,
            frozenset({"7e06d7498797056a", "e71ec24aab080ab3", "9437537e9c4660fc"}),
        ),
        ForeignName(
            "xgboost.callback:CallbackContainer.before_training",
            ("self", "model"),
            frozenset({"cacf9bb5f03127e2"}),
        ),
        ForeignName(
            "xgboost.callback:CallbackContainer.before_iteration",
            ("self", "model", "epoch", "dtrain", "evals"),
            frozenset({"c1243ee0368f0615"}),
        ),
        ForeignName(
            "xgboost.callback:CallbackContainer.after_iteration",
            ("self", "model", "epoch", "dtrain", "evals"),
            frozenset({"91911207bf4c0f11"}),
        ),
        ForeignName(
            "xgboost.callback:CallbackContainer.after_training",
            ("self", "model"),
            frozenset({"0facdeead0838aab"}),
        ),
        ForeignName("xgboost.core:Booster.update", ("self", "dtrain", "iteration", "fobj")),
    ),
}
