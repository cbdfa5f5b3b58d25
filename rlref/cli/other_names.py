"""What options are called elsewhere: CleanRL, Stable-Baselines3, PureJaxRL, rejax, Spinning Up, RLlib and others.

Only for the line that is said of an option which is not there: names of other libraries are not taken as options.
"""

from collections.abc import Collection, Mapping

from rlref.errors import nearest

Row = tuple[str, str, str]

OPTIONS: tuple[Row, ...] = (
    # The agent's settings.
    ("learning-rate", "lr learn_rate step_size initial_lr lr_init pi_lr vf_lr q_lr actor_lr critic_lr policy_lr", ""),
    ("anneal-lr", "anneal lr_anneal anneal_learning_rate lr_annealing lr_schedule linear_schedule lr_decay decay_lr "
     "linear_decay lr_linear_decay use_linear_lr_decay", ""),
    ("num-envs", "n_envs num_env n_env envs num_environments parallel_envs num_parallel_envs num_actors n_actors "
     "num_workers n_workers local_num_envs", ""),
    ("num-steps", "n_steps num_step rollout_length rollout_len rollout_steps num_rollout_steps unroll_length horizon "
     "steps_per_env steps_per_epoch local_steps_per_epoch", "of each environment in one rollout"),
    ("n-step", "n_steps n_step_return n_step_returns multi_step", "rewards summed before the bootstrap"),
    ("total-timesteps", "total_steps num_timesteps n_timesteps timesteps total_timestep max_timesteps max_steps steps "
     "train_steps num_train_steps env_steps num_env_steps total_env_steps frames num_frames total_frames num_updates "
     "n_updates episodes num_episodes n_episodes total_episodes", "a training's length is in environment steps"),
    ("num-minibatches", "n_minibatches num_mini_batch n_mini_batch num_batches minibatches "
     "minibatch_size sgd_minibatch_size batch_size batch",
     "a minibatch has num_envs x num_steps / num_minibatches samples"),
    ("batch-size", "batch minibatch_size buffer_batch_size sample_batch_size train_batch_size "
     "replay_batch_size num_minibatches", ""),
    ("update-epochs", "n_epochs num_epochs epochs ppo_epochs ppo_epoch num_update_epochs update_epoch opt_epochs "
     "noptepochs k_epochs train_iters train_pi_iters num_sgd_iter", ""),
    ("num-generations", "generations n_generations num_iterations iterations n_iter n_itr num_iters num_updates epochs "
     "n_epochs num_epochs", ""),
    ("clip-coef", "clip clip_range clip_eps clip_epsilon clip_ratio clip_param ppo_clip eps_clip "
     "epsilon_clip clipping_epsilon eps epsilon", ""),
    ("clip-vloss", "clip_value clip_value_loss value_clip vf_clip clip_range_vf vf_clip_param use_clipped_value_loss",
     "by clip_coef, on or off"),
    ("norm-adv", "norm_advantage normalize_adv normalize_advantage normalize_advantages adv_norm "
     "standardize_advantages", ""),
    ("ent-coef", "ent_coeff entropy entropy_coef entropy_coeff entropy_coefficient entropy_cost entropy_beta "
     "entropy_weight ent_weight entropy_loss_weight beta", ""),
    ("vf-coef", "vf_coeff value_coef value_coeff value_loss_coef vf_loss_coeff value_cost value_weight critic_coef "
     "critic_weight value_function_coef", ""),
    ("max-grad-norm", "max_gradient_norm grad_norm grad_clip gradient_clip gradient_clipping clip_grad clip_grad_norm "
     "grad_norm_clip clip_norm", ""),
    ("gamma", "discount discount_factor discount_rate discounting", ""),
    ("gae-lambda", "gae lam lmbda lambda lambd gae_lam td_lambda trace_decay", ""),
    ("target-kl", "kl kl_target max_kl desired_kl kl_threshold", ""),
    ("adam-eps", "adam_epsilon eps_adam optimizer_eps opt_eps", ""),
    ("normalize-observations", "norm_obs normalize_obs obs_norm normalize normalize_env normalize_input "
     "observation_normalization clip_obs", "observations are clipped to +-10 as well"),
    ("scale-rewards", "norm_reward norm_rewards normalize_reward normalize_rewards reward_norm reward_scale "
     "reward_scaling normalize_returns clip_reward clip_rewards reward_clip", "rewards are clipped to +-10 as well"),
    ("hidden-sizes", "hidden hidden_size hidden_dim hidden_dims hidden_units hidden_layers layers layer_sizes "
     "hidden_layer_sizes num_layers net_arch network network_width mlp_layers num_units units width hid fc_dim_size "
     "policy_kwargs agent_kwargs", "as in --hidden-sizes 64 64"),
    ("activation", "act act_fn activation_fn activation_function nonlinearity", ""),
    ("layer-norm", "use_layer_norm ln", ""),
    ("conv-layers", "cnn cnn_layers cnn_policy filters conv_filters channels kernel_size stride",
     "features, kernel size and stride of each"),
    ("init-log-std", "log_std_init log_std init_std initial_std std", ""),
    # PPO's with a memory.
    ("cell", "cell_type rnn_type recurrent_type", "--cell gru or --cell lstm"),
    ("memory-size", "lstm_hidden_size lstm_size gru_hidden_size gru_hidden_dim gru_size rnn_hidden_size rnn_hidden_dim "
     "rnn_size recurrent_hidden_size hidden_state_size", ""),
    ("sequence-length", "seq_len seq_length sequence_len bptt bptt_len tbptt tbptt_len unroll_length unroll_steps",
     "steps that gradients go back"),
    # DQN's.
    ("buffer-size", "buffer buffer_capacity buffer_length replay_size replay_buffer replay_buffer_size replay_capacity "
     "replay_memory_size memory_size max_replay_size capacity memory", ""),
    ("buffer-dtype", "optimize_memory_usage", ""),
    ("learning-starts", "learning_start start_steps warmup warmup_steps update_after fill_buffer min_replay_size "
     "min_buffer_size prefill burn_in random_steps initial_random_steps", ""),
    ("train-frequency", "train_freq training_freq update_freq update_frequency update_every training_interval "
     "gradient_steps num_gradient_steps updates_per_step utd utd_ratio replay_ratio",
     "one gradient step every so many environment steps"),
    ("target-network-frequency", "target_update target_update_interval target_update_freq target_update_frequency "
     "target_update_period target_network_update_freq target_network_update_frequency target_freq target_sync "
     "sync_freq update_target_every", "in environment steps"),
    ("tau", "polyak soft_update soft_tau target_tau ema", "the online network's share: 1 - polyak"),
    ("start-e", "eps epsilon start_epsilon eps_start epsilon_start init_eps initial_eps initial_epsilon "
     "epsilon_initial exploration_initial_eps exploration", "the probability of a random action, down to end_e"),
    ("end-e", "end_epsilon eps_end epsilon_end eps_final final_eps final_epsilon epsilon_final eps_finish "
     "epsilon_finish min_epsilon epsilon_min exploration_final_eps", ""),
    ("exploration-fraction", "eps_decay epsilon_decay eps_fraction epsilon_decay_steps epsilon_anneal_time "
     "epsilon_timesteps exploration_steps anneal_steps", "a share of total_timesteps"),
    ("target", "double double_q double_dqn ddqn use_double", "--target double, the default, or --target max"),
    ("dueling", "duel dueling_dqn use_dueling", ""),
    ("loss", "loss_fn huber huber_loss", "--loss huber or --loss squared"),
    # CEM's.
    ("population-size", "popsize population n_pop num_candidates n_candidates", ""),
    ("elite-fraction", "elite_frac elite_ratio elites num_elites n_elites n_elite", "a share of the population"),
    ("num-rollouts", "rollouts n_rollouts num_evals rollouts_per_candidate", ""),
    ("init-variance", "initial_variance sigma sigma_init init_sigma init_std initial_std std", "a square of it"),
    ("extra-variance", "extra_std noise_std additive_noise", "a variance"),
    ("max-episode-steps", "time_limit max_ep_len episode_length max_episode_length max_path_length", ""),
    # How to run.
    ("env-id", "env env_name environment environment_name gym_id gym_env game task", ""),
    ("env-params", "env_kwargs env_args env_config env_options time_limit max_ep_len episode_length max_episode_steps "
     "max_episode_length max_path_length", "as in --env-params max_steps_in_episode=200"),
    ("seed", "random_seed rng_seed rng key", ""),
    ("num-seeds", "seeds n_seeds num_seed n_seed num_runs n_runs repeats num_repeats num_trials", ""),
    ("run-dir", "log_dir out out_dir output output_dir save_dir save_path results_dir workdir dir folder",
     "a folder that does not exist yet"),
    ("checkpoint-every", "checkpoint checkpoint_dir checkpoint_freq checkpoint_frequency checkpoint_interval "
     "ckpt_every ckpt_freq save_freq save_frequency save_every save_interval",
     "in updates; --resume RUN goes on from one"),
    ("resume", "restore load load_path load_model restore_path from_checkpoint model_path pretrained", "takes a run"),
    ("note", "exp_name run_name name experiment experiment_name tag tags notes comment description",
     "and --run-dir names its folder"),
    ("eval-every", "eval eval_freq eval_frequency eval_interval evaluate_every evaluation_interval evaluation_freq",
     "in updates"),
    ("eval-episodes", "n_eval_episodes num_eval_episodes eval_num_episodes evaluation_episodes num_eval_rollouts", ""),
    ("log", "logger tensorboard tensorboard_log tb use_tensorboard csv parquet", "as in --log tensorboard"),
    ("memory-gb", "memory mem max_memory", ""),
    ("num-settings", "num_samples n_samples num_trials n_trials trials max_trials", ""),
    ("vary", "param params parameters search_space space grid", ""),
    ("only", "check checks probe probes test option", ""),
    ("episodes", "num_episodes n_episodes n_eval_episodes", ""),
    ("gif", "video capture_video record record_video save_video render", "as in --gif x.gif"),
    ("out", "output output_dir out_dir save_dir save_path path file o", ""),
)  # fmt: skip
"""An option, what it may be called elsewhere, and what to know of it. A name may stand in several rows: of those whose
option is there, the first counts."""

INSTEAD: dict[str, str] = {
    "wandb track use_wandb wandb_project wandb_project_name wandb_entity wandb_group wandb_mode wandb_tags mlflow "
    "neptune comet aim clearml": "Metrics go elsewhere from Python, through a sink: rlref/runs/sinks.py has one for "
    "Weights & Biases",
    "capture_video video record record_video save_video gif render render_mode render_freq visualize": "Every run is "
    "saved: `rlref play RUN --seed 0 --gif x.gif` draws an episode",
    "cuda use_cuda gpu use_gpu gpu_id num_gpus device devices num_devices platform accelerator backend tpu cpu":
    "jax chooses the device: install `.[cuda]` for an NVIDIA GPU",
    "torch_deterministic deterministic cudnn_deterministic": "Nothing is to be switched on: `rlref reproduce RUN` says "
    "whether a run comes out the same",
    "torch_threads num_threads": "rlref has none: jax takes the cores that there are",
    "save save_model save_agent save_params save_policy": "Every run is saved; `rlref export RUN --seed 0` writes one "
    "seed's parameters",
    "upload_model hf_entity hub push_to_hub": "rlref uploads nothing; `rlref export RUN --seed 0` writes one seed's "
    "parameters",
    "optimizer optim optimizer_class weight_decay momentum beta1 beta2": "The optimiser is `make_optimizer` in the "
    "agent's file: edit a copy of it",
    "use_sde sde sde_sample_freq prioritized prioritized_replay per per_alpha noisy noisy_nets c51 distributional "
    "n_atoms num_atoms v_min v_max n_quantiles num_quantiles autotune policy_noise noise_clip action_noise alpha":
    "rlref has none",
    "lstm use_lstm gru use_gru rnn use_rnn recurrent": "`rlref train ppo_rnn` has a memory: --cell gru or --cell lstm",
    "frame_stack n_stack num_stack stack_size": "--env-id stacked:4:ENV shows the last 4 observations",
    "vec_normalize": "PPO has --normalize-observations and --scale-rewards, CEM the first of them",
    "wrapper wrappers env_wrapper": "Wrap your environment in a function, and train with --env-id "
    "package.module:make_env",
    "verbose quiet silent debug progress_bar log_interval log_freq log_frequency log_every print_freq print_interval":
    "Progress is always shown, but for --json, and the run has the metrics of every update",
    "vmap jit pmap compile vectorize": "--num-seeds seeds train side by side, compiled, on all devices",
    "algo algorithm agent model policy": "The agent comes first, as in `rlref train ppo`",
    "config config_file config_path yaml hyperparams hyperparameters": "There is no file of settings: each is an "
    "option, and `rlref reproduce RUN` takes a run's own",
}  # fmt: skip
"""What to do about options that have no like here."""


def key(name: str) -> str:
    """What names are compared by: `--Learning_Rate=1` is `learningrate`."""
    return name.partition("=")[0].rpartition(".")[2].lower().replace("_", "").replace("-", "")


def suggestion(
    word: str, options: Collection[str], agent: str = "", others: Mapping[str, Collection[str]] | None = None
) -> str:
    """' Did you mean ...?' for an option `word` that is not there, or what to do instead; '' where nothing is near.

    Args:
      word: as given, such as `--lr` or `--lr=1`.
      options: those that there are, such as `learning-rate`.
      agent: its name, if there is one.
      others: other agents' names and their settings, for what this one has no setting of.
    """
    given = key(word)
    for name in (given, given.removeprefix("no")):
        if found := called(name, options):
            option, note = found
            return f" Did you mean '--{option}'{f' ({note})' if note else ''}?"
        for other, settings in (others or {}).items():
            if found := called(name, settings):
                return f" {agent} has no such setting; {other} has '--{found[0]}'."
        if said := next((said for names, said in INSTEAD.items() if name in map(key, names.split())), ""):
            return f" {said}."
    return nearest(word.partition("=")[0].replace("_", "-"), [f"--{option}" for option in options])


def called(name: str, options: Collection[str]) -> tuple[str, str] | None:
    """The one of `options` that is called so, here but for its spelling or elsewhere, and what to know of it."""
    here = [(option, "") for option in options if key(option) == name]
    rows = ((option, note) for option, names, note in OPTIONS if name in map(key, names.split()))
    return here[0] if here else next((row for row in rows if row[0] in options), None)
