"""Options by the names that people bring along: what is suggested, and that all of it is there."""

import itertools
import re

import pytest

from rlref import cem, cli, dqn, ppo, ppo_rnn
from rlref.cli import agent_options, main
from rlref.cli.ablate import AblateOptions
from rlref.cli.other_names import INSTEAD, OPTIONS, key, suggestion
from rlref.cli.sweep import SearchOptions
from rlref.cli.train import TrainOptions

AGENTS = {"ppo": ppo, "dqn": dqn, "cem": cem, "ppo_rnn": ppo_rnn}
RUN = agent_options.option_names(TrainOptions)
SETTINGS = {name: agent_options.option_names(agent.Config) for name, agent in AGENTS.items()}
SETTINGS["cem"] = [*SETTINGS["cem"], *agent_options.option_names(agent_options.Budget)]
BY_COMMAND = {name: cli.option_strings(parser) for name, parser in cli.command_parser()[1].items()}


def every_option():
    classes = (TrainOptions, SearchOptions, AblateOptions)
    own = [option for one in classes for option in agent_options.option_names(one)]
    own += itertools.chain(*SETTINGS.values())
    return {f"--{option}" for option in own}.union(*BY_COMMAND.values())


def said_of(word, agent):
    others = {name: x for name, x in SETTINGS.items() if name != agent}
    return suggestion(word, RUN + SETTINGS[agent], agent, others)


def test_every_suggestion_is_an_option():
    told = [f"--{option}" for option, _, _ in OPTIONS]
    told += re.findall(r"--[a-z][a-z-]+", " ".join([note for _, _, note in OPTIONS] + list(INSTEAD.values())))
    assert set(told) <= every_option()


def test_every_setting_in_words_is_one():
    words = re.findall(r"\b[a-z]+_[a-z_]+\b", " ".join(note for _, _, note in OPTIONS))
    assert {word.replace("_", "-") for word in words} - {"max-steps-in-episode"} <= {x[2:] for x in every_option()}


def test_names_are_told_apart():
    for option, names, _ in OPTIONS:
        assert len(set(map(key, names.split()))) == len(names.split()), option
        assert key(option) not in map(key, names.split())
    instead = [key(x) for names in INSTEAD for x in names.split()]
    assert len(set(instead)) == len(instead)


@pytest.mark.parametrize(
    ("agent", "words", "option"),
    [
        ("ppo", "--lr --LR --lr=3e-4 --learningRate --agent.lr --pi-lr --step_size", "learning-rate"),
        ("dqn", "--lr --q_lr", "learning-rate"),
        ("ppo", "--n_steps --rollout-length --steps-per-epoch", "num-steps"),
        ("dqn", "--n-steps", "n-step"),
        ("ppo", "--n_envs --NUM_ENV --num-actors", "num-envs"),
        ("ppo", "--entropy_coef --ENT_COEFF --ent_weight --entropy-coefficient", "ent-coef"),
        ("ppo", "--value-loss-coef --vf-coeff", "vf-coef"),
        ("ppo", "--total_steps --num_timesteps --timesteps --num-updates --num-episodes", "total-timesteps"),
        ("cem", "--total-steps --num-timesteps", "total-timesteps"),
        ("cem", "--iterations --epochs --generations", "num-generations"),
        ("ppo", "--n_minibatches --minibatch-size --batch_size --batch", "num-minibatches"),
        ("dqn", "--minibatch-size --batch --buffer_batch_size", "batch-size"),
        ("ppo", "--n_epochs --epochs --train-iters", "update-epochs"),
        ("ppo", "--clip_range --CLIP_EPS --clip-ratio", "clip-coef"),
        ("ppo", "--lam --lmbda --lambda", "gae-lambda"),
        ("ppo", "--discount --discount-factor", "gamma"),
        ("ppo", "--grad-clip --clip_grad_norm", "max-grad-norm"),
        ("ppo", "--hidden --layers --net_arch --hidden_layer_sizes", "hidden-sizes"),
        ("ppo", "--kl-target --max-kl", "target-kl"),
        ("ppo", "--anneal --no-anneal --lr_schedule", "anneal-lr"),
        ("ppo", "--norm_obs --NORMALIZE_ENV", "normalize-observations"),
        ("ppo", "--normalize-reward", "scale-rewards"),
        ("dqn", "--replay_size --buffer --memory-size", "buffer-size"),
        ("dqn", "--epsilon --exploration-initial-eps", "start-e"),
        ("dqn", "--exploration_final_eps --EPSILON_FINISH", "end-e"),
        ("dqn", "--epsilon_decay --EPSILON_ANNEAL_TIME", "exploration-fraction"),
        ("dqn", "--target_update_interval --target_update_freq", "target-network-frequency"),
        ("dqn", "--polyak", "tau"),
        ("dqn", "--train_freq --gradient_steps --update-every", "train-frequency"),
        ("dqn", "--learning-start --fill_buffer --update-after", "learning-starts"),
        ("dqn", "--double --double-q", "target"),
        ("dqn", "--dueling-dqn --duel", "dueling"),
        ("cem", "--pop-size --popsize", "population-size"),
        ("cem", "--sigma", "init-variance"),
        ("ppo", "--env --env-name --gym-id", "env-id"),
        ("ppo", "--seeds --n_seeds", "num-seeds"),
        ("ppo", "--log-dir --output --save-dir", "run-dir"),
        ("ppo", "--exp-name --run_name --tags", "note"),
        ("ppo", "--checkpoint --save_freq", "checkpoint-every"),
        ("ppo", "--load --restore", "resume"),
        ("ppo", "--eval-freq", "eval-every"),
        ("ppo", "--tensorboard --tb", "log"),
        ("ppo", "--env_kwargs --time-limit", "env-params"),
        ("ppo", "--learning-rat --learnin-rate", "learning-rate"),
        ("ppo_rnn", "--lstm_hidden_size --gru-hidden-dim", "memory-size"),
        ("ppo_rnn", "--seq-len --tbptt", "sequence-length"),
    ],
)
def test_what_is_meant_is_suggested(agent, words, option):
    for word in words.split():
        assert f"Did you mean '--{option}'" in said_of(word, agent), word


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--track --wandb --wandb-project-name", "rlref/runs/sinks.py"),
        ("--capture_video --render", "`rlref play RUN --seed 0 --gif x.gif`"),
        ("--cuda --no-cuda --device=cpu --use-gpu", "install `.[cuda]`"),
        ("--torch_deterministic --torch-deterministic=False", "`rlref reproduce RUN`"),
        ("--save_model", "`rlref export RUN --seed 0`"),
        ("--upload-model --hf-entity", "rlref uploads nothing"),
        ("--use-sde --per", "rlref has none"),
        ("--lstm --recurrent", "`rlref train ppo_rnn` has a memory"),
        ("--frame-stack --n_stack=4", "--env-id stacked:4:ENV"),
        ("--vec-normalize", "PPO has --normalize-observations"),
        ("--optimizer", "`make_optimizer`"),
        ("--verbose --log-interval", "every update"),
        ("--algo", "`rlref train ppo`"),
    ],
)
def test_what_is_not_an_option_is_told_otherwise(words, said):
    for word in words.split():
        assert said in said_of(word, "ppo"), word


def test_a_setting_of_another_agent_is_told_of():
    assert said_of("--buffer-size", "ppo") == " ppo has no such setting; dqn has '--buffer-size'."
    assert said_of("--replay_size", "ppo") == " ppo has no such setting; dqn has '--buffer-size'."
    assert said_of("--seq_len", "ppo") == " ppo has no such setting; ppo_rnn has '--sequence-length'."
    assert said_of("--clip_eps", "cem") == " cem has no such setting; ppo has '--clip-coef'."


def test_what_a_minibatch_is_is_told():
    said = said_of("--minibatch-size", "ppo")
    assert said.endswith("'--num-minibatches' (a minibatch has num_envs x num_steps / num_minibatches samples)?")


def test_a_word_that_nobody_uses_gets_no_suggestion():
    assert said_of("--xyzzy", "ppo") == ""


LINES = [
    ("train ppo --lr 3", "there is no option '--lr'. Did you mean '--learning-rate'? "
     "`rlref train ppo --help` shows all"),
    ("sweep ppo --LR 3", "there is no option '--LR'. Did you mean '--learning-rate'? "
     "`rlref sweep ppo --help` shows all"),
    ("trian ppo", "there is no command 'trian'. Did you mean 'train'? `rlref --help` shows all"),
    ("probe ppo --onlyy x", "there is no option '--onlyy'. Did you mean '--only'? `rlref probe --help` shows all"),
    ("play x --video y", "there is no option '--video'. Did you mean '--gif' (as in --gif x.gif)? `rlref play --help` "
     "shows all"),
    ("baselines CartPole-v1 --total_steps 3", "there is no option '--total_steps'. Did you mean '--total-timesteps' (a "
     "training's length is in environment steps)? `rlref baselines --help` shows all"),
    ("probe", "the following arguments are required: agent. `rlref probe --help` shows all"),
    ("probe ppo --num-seeds x", "argument --num-seeds: invalid int value: 'x'. `rlref probe --help` shows all"),
    ("probe ppo dqn", "'dqn' is too much. `rlref probe --help` shows all"),
    ("--helpp", "the following arguments are required: COMMAND. `rlref --help` shows all"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "line"), LINES)
def test_what_is_wrong_is_one_line(arguments, line, capsys):
    assert main(arguments.split()) == 2
    assert capsys.readouterr().err == f"rlref: error: {line}\n"
