import numpy as np
import pytest

from rlref import cem, dqn, ppo
from rlref.envs.ids import make_env
from rlref.errors import UsageError
from rlref.search import space

ENV, PARAMS = make_env("CartPole-v1")


def checked(given, module=ppo):
    return space.check_space(module, module.Config(), given, ENV, PARAMS)


def test_places_on_each_scale():
    np.testing.assert_allclose(space.Range(1.0, 3.0).at(np.array([0, 0.25, 1])), [1, 1.5, 3])
    np.testing.assert_allclose(space.Range(1e-4, 1e-2, "log").at(np.array([0, 0.5, 1])), [1e-4, 1e-3, 1e-2])
    np.testing.assert_allclose(space.Range(0.9, 0.999, "complement").at(np.array([0, 0.5, 1])), [0.9, 0.99, 0.999])


def test_values_stay_within_their_range():
    x = space.Range(0.99, 0.99999999, "complement").at(np.linspace(0, 1, 50))
    assert (np.diff(x) > 0).all()
    assert (x.min(), x.max()) == (0.99, 0.99999999)
    x = space.Range(0.1234567, 0.7654321).at(np.array([0, 1]))
    assert x.tolist() == [0.123457, 0.765432]


USUAL = {name: x for module in (ppo, dqn, cem) for name, x in space.default_ranges(module.Config()).items()}


@pytest.mark.parametrize("x", USUAL.values(), ids=USUAL)
def test_place_is_where_a_value_is(x):
    assert x.place(float(x.at(np.array(0.3)))) == pytest.approx(0.3, abs=1e-4)


def test_draws_are_uniform_on_the_scale_and_the_same_each_time():
    given = {"learning_rate": space.Range(1e-4, 1e-2, "log"), "update_epochs": (2, 4, 8)}
    places, drawn = space.draw(given, 3000, 0)
    assert drawn == space.draw(given, 3000, 0)[1] != space.draw(given, 3000, 1)[1]
    rates = np.array([d["learning_rate"] for d in drawn])
    assert np.mean(rates < 1e-3) == pytest.approx(0.5, abs=0.03)
    assert [np.mean([d["update_epochs"] == n for d in drawn]) for n in (2, 4, 8)] == pytest.approx(
        [1 / 3] * 3, abs=0.03
    )
    np.testing.assert_allclose([given["learning_rate"].place(x) for x in rates], places["learning_rate"], atol=1e-4)
    assert all(
        given["update_epochs"][i] == d["update_epochs"] for i, d in zip(places["update_epochs"], drawn, strict=True)
    )


def test_command_line():
    texts = ["learning_rate=1e-5:1e-3", "ent-coef=0:0.1", "hidden_sizes=(64,64),(256,)", "activation=tanh,relu"]
    assert space.parse([*texts, "clip_coef=.1:.3:linear", "norm_adv=True,False"], ppo, ppo.Config()) == {
        "learning_rate": space.Range(1e-5, 1e-3, "log"),
        "ent_coef": space.Range(0, 0.1, "log"),
        "hidden_sizes": ((64, 64), (256,)),
        "activation": ("tanh", "relu"),
        "clip_coef": space.Range(0.1, 0.3, "linear"),
        "norm_adv": (True, False),
    }
    lists = space.parse(["hidden_sizes=[64,64],[128]", "conv_layers=[[16,3,1]],[[8,3,1]]"], ppo, ppo.Config())
    assert lists == {"hidden_sizes": ((64, 64), (128,)), "conv_layers": (((16, 3, 1),), ((8, 3, 1),))}
    assert space.parse(["init_log_std=.001:1"], ppo, ppo.Config())["init_log_std"].scale == "log"
    assert space.parse(["init_log_std=-1:1"], ppo, ppo.Config())["init_log_std"].scale == "linear"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate", "says nothing to search"),
        ("learning_rat=1:2", "Did you mean 'learning_rate'"),
        ("learning_rate=a:2", "must be numbers"),
    ],
)
def test_what_cannot_be_read(text, message):
    with pytest.raises(UsageError, match=message):
        space.parse([text], ppo, ppo.Config())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_envs": space.Range(2, 8)}, "num_envs shapes the program"),
        ({"norm_adv": space.Range(0, 1)}, "norm_adv shapes the program"),
        ({"ent_coef": space.Range(0, 0.1, "log")}, "takes numbers above 0"),
        ({"gamma": space.Range(0.9, 1.0, "complement")}, "takes numbers below 1"),
        ({"learning_rate": space.Range(1e-2, 1e-3)}, "the lower first"),
        ({"learning_rate": space.Range(1e-3, float("nan"))}, "the lower first"),
        ({"learning_rate": space.Range(1e-3, 1e-2, "cubic")}, "no scale 'cubic'"),
        ({"learning_rate": space.Range(-1e-3, 1e-2)}, "learning_rate"),
        ({"gamma": space.Range(0.5, 1.5)}, "gamma"),
        ({"num_envs": (4,)}, "must be several"),
        ({"num_envs": (4, 4)}, "all different"),
        ({"learning_rate": (1, 1.0)}, "all different"),
        ({"env_id": ("CartPole-v1", "Acrobot-v1")}, "not to be searched"),
        ({"num_envs": (4, 8.0)}, "of the type int"),
        ({"activation": ("tanh", 3)}, "of the type str"),
        ({"num_minibatches": (4, 7)}, "num_minibatches"),
        ({"nonsense": (1, 2)}, "no setting 'nonsense'"),
        ({}, "nothing to search"),
    ],
)
def test_what_cannot_be_searched(given, message):
    with pytest.raises(UsageError, match=message):
        checked(given)


@pytest.mark.parametrize("module", [ppo, dqn, cem])
def test_usual_space_can_be_searched(module):
    given = checked(None, module)
    assert len(given) >= 4
    assert "max_grad_norm" not in given or module is ppo  # DQN's is None: it would change the program
