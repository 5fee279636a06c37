"""The environment around a runner: what code finds, what becomes of what it does, and rollouts under each card."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import tiny_model
from fakes import (
    CODE_CARDS,
    FakeRunner,
    called,
    code_card,
    make_pixels,
    make_run,
    make_sample,
    tagged,
    written,
)
from PIL import Image

from vtcli.algo.monitor import describe
from vtcli.algo.pack import to_row
from vtcli.config import compose
from vtcli.config.binding import bind
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.envs.code import RunLostError, open_env
from vtcli.errors import ConfigError, InputError
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.sandbox.types import Operation, OutputImage, RunResult, Status
from vtcli.schema import EnvTurn, Group, Scored, Signals, Stop, Verdict, VideoRef
from vtcli.store import records

IMAGE = make_pixels()
LIMITS = Limits(max_tokens=20_000, max_turn_tokens=4000)
DONE = "<answer>\n\\boxed{K}\n</answer>"


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"not decoded here")
    return VideoRef(str(path), 640, 480, 250, 25.0)


@pytest.fixture
def sample(video):
    """Seen as 112 x 84 pixels, stored as 150 x 100."""

    def of(name):
        base = make_sample(tiny_model.store(), pixels=make_pixels(3, 150, 100))
        return replace(base, images=(), videos=(video,)) if name == "pyvision_video" else base

    return of


def env_of(name, sample, *results, **changes):
    runner = FakeRunner(*results)
    protocol = replace(code_card(name), **changes)
    return open_env(sample, protocol=protocol, runner=runner, images=tiny_model.store()), runner


def step(env, text, images=None):
    turn = env.syntax.read(text)
    return asyncio.run(env.step(turn, env.sample.images if images is None else images))


def play(name, sample, turns, *results, limits=LIMITS):
    env, runner = env_of(name, sample, *results)
    policy, chat = ScriptedPolicy(tiny_model.chat(), turns), tiny_model.chat()
    return asyncio.run(rollout(RolloutRequest(sample, 5), policy, chat, lambda _: env, limits)), runner


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("codev", '### User Image Path:** "image_0.png"\n### User Image Size:** "150×100"'),
        ("codevision", "Image 0: 150x100 pixels."),
        ("codedance", "The image of 140x112 pixels is in the variable 'input_image' and the file 'input_image.jpg'."),
        ("pyvision_image", "Image Width: 150; Image Height: 100"),
        ("pyvision_video", "Frame Width: 640; Frame Height: 480;\nVideo Length: 250; Sample FPS: 25.00\nThe original"),
        ("thyme", '### User Image Path:** "image_0.png"\n### User Image Size:** "150x100"'),
    ],
)
def test_the_prompt_says_the_size_that_the_code_sees(name, said, sample):
    env, runner = env_of(name, sample(name), make_run("ok", output="1"))
    _, question = asyncio.run(env.reset())
    assert said in question
    step(env, written(name, "print(1)"))
    (setup,) = runner.setups
    if name != "pyvision_video":
        height, width = setup.pictures[0].pixels.shape[:2]
        assert f"{width}" in said
        assert f"{height}" in said


@pytest.mark.parametrize(
    ("name", "variables", "files", "videos"),
    [
        ("codev", {"image": 0}, {"image_0.png": 0}, {}),
        ("codevision", {"image": 0}, {}, {}),
        ("codedance", {"input_image": 0}, {"input_image.jpg": 0}, {}),
        ("pyvision_image", {"image_clue_0": 0}, {}, {}),
        ("pyvision_video", {}, {}, {"video_clue_0"}),
        ("thyme", {}, {"image_0.png": 0}, {}),
    ],
)
def test_what_the_code_finds(name, variables, files, videos, sample):
    env, runner = env_of(name, sample(name), make_run("ok", IMAGE))
    step(env, written(name, "x = 1"))
    (setup,) = runner.setups
    assert (dict(setup.variables), dict(setup.image_files), set(setup.videos)) == (variables, files, set(videos))
    for picture in setup.pictures:
        if picture.encoded is not None:  # the file is exactly the picture
            with Image.open(io.BytesIO(picture.encoded)) as image:
                assert np.array_equal(np.asarray(image), picture.pixels)
    compile(setup.prelude, "prelude", "exec")


def test_several_images_have_a_name_each():
    images = tuple(tiny_model.image(i) for i in range(2))
    env, runner = env_of("pyvision_image", make_sample(images=images))
    step(env, tagged("x"))
    assert dict(runner.setups[0].variables) == {"image_clue_0": 0, "image_clue_1": 1}
    env, runner = env_of("codedance", make_sample(images=images))
    step(env, tagged("x"))
    assert dict(runner.setups[0].image_files) == {"input_image.jpg": 0, "input_image_1.jpg": 1}
    question = asyncio.run(env.reset())[1]
    assert "'input_image_1'" in question


def test_one_episode_a_trajectory_and_none_without_code(sample):
    env, runner = env_of("codev", sample("codev"))
    assert step(env, "<answer>K</answer>") is None
    asyncio.run(env.close())
    assert (runner.setups, runner.closed) == ([], 0)
    step(env, tagged("x = 1"))
    step(env, tagged("y = 2"))
    asyncio.run(env.close())
    asyncio.run(env.close())
    assert (len(runner.setups), runner.sources, runner.closed) == (1, ["x = 1", "y = 2"], 1)


def test_codevision_starts_anew_on_the_image_that_the_call_names(sample):
    env, runner = env_of("codevision", sample("codevision"), make_run("ok", IMAGE), make_run("ok", IMAGE))
    first = step(env, called("codevision", code="result = img", description="", image_index=0))
    images = (*env.sample.images, *first.images)
    second = step(env, called("codevision", code="result = image", image_index=1), images)
    assert [setup.pictures[0].pixels.shape for setup in runner.setups] == [(100, 150, 3), (112, 112, 3)]
    assert (len(runner.setups), runner.closed) == (2, 2)
    assert second.results[0].images == (2,)
    assert runner.sources[0].startswith("result = img\n\ntry:\n    result\n")
    for wrong in (2, -1, "0", True, 0.0, None):
        refused = step(env, called("codevision", code="x", image_index=wrong), images)
        assert "images 0 to 1 exist" in refused.text
    long = step(env, called("codevision", code="x" * 2049, image_index=0), images)
    assert (long.results[0].status, len(runner.setups)) == ("refused", 2)


STATUSES = {
    Status.OK: "ok",
    Status.NO_OUTPUT: "no_output",
    Status.TIMEOUT: "timeout",
    Status.REFUSED: "refused",
}


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.PROTOCOL, Status.LOST)])
def test_how_a_run_ended_is_the_result_s_status(status, sample):
    env, _ = env_of("codev", sample("codev"), RunResult(status, output="x" if status is Status.OK else "", wall_s=2.5))
    (result,) = step(env, tagged("x")).results
    assert (result.status, result.details["run"]) == (STATUSES.get(status, "error"), str(status))
    assert (result.wall_s, result.name, result.arguments) == (2.5, "python", {"code": "x"})


@pytest.mark.parametrize("status", ["lost", "protocol"])
def test_our_fault_and_forged_replies_break_the_trajectory(status, sample):
    env, _ = env_of("codev", sample("codev"), make_run(status, error="the template died"))
    with pytest.raises(RunLostError, match=f"{status}: the template died"):
        step(env, tagged("x"))
    found, runner = play("codev", sample("codev"), [tagged("x"), DONE], make_run(status, error="gone"))
    assert (found.stop, found.error) == (Stop.BROKEN, f"RunLostError: {status}: gone")
    assert runner.closed == 1
    assert found.answer is None
    found, _ = play("codev", sample("codev"), [tagged("x"), DONE], OSError("no pool"))
    assert (found.stop, found.error) == (Stop.BROKEN, "OSError: no pool")


def test_images_keep_what_made_them_as_a_claim(sample):
    crop = Operation("crop", {"box": [1, 2, 30, 40]}, "pil", 0, (1, 2, 30, 40))
    images = (OutputImage(IMAGE, "show", "", (crop,)),)
    env, _ = env_of("pyvision_image", sample("pyvision_image"), make_run("ok", images=images, operations=(crop,)))
    observation = step(env, tagged("x"))
    (ref,), (result,) = observation.images, observation.results
    assert ref.parent is None
    assert (ref.transform["op"], ref.transform["verified"]) == ("code", None)
    assert ref.transform["picture"] == env.sample.images[0].full and "size" not in ref.transform
    assert ref.transform["operations"] == result.details["operations"]
    assert ref.transform["operations"][0]["arguments"] == {"box": [1, 2, 30, 40]}
    assert np.array_equal(tiny_model.store().full(ref), IMAGE)
    assert result.images == (1,)


def test_in_codevision_the_chain_starts_at_the_image_of_the_call(sample):
    made = OutputImage(IMAGE, "result", "", (Operation("rotate", {"degrees": 90}, "pil", 0),))
    env, _ = env_of("codevision", sample("codevision"), make_run("ok", images=(made,)))
    images = (*env.sample.images, tiny_model.image(1), tiny_model.image(2))
    (ref,) = step(env, called("codevision", code="x", image_index=2), images).images
    assert ref.transform["operations"][0]["image"] == 2
    assert ref.transform["picture"] == tiny_model.image(2).full


def test_images_that_the_model_cannot_be_shown_are_left_out_and_counted(sample):
    line = np.zeros((2, 900, 3), np.uint8)
    env, _ = env_of("codedance", sample("codedance"), make_run("ok", line, IMAGE, images_dropped=2))
    observation = step(env, tagged("x"))
    assert "Note: 3 images were left out" in observation.text
    assert (len(observation.images), observation.results[0].details["images_dropped"]) == (1, 3)


def test_images_of_a_failed_run_are_not_shown(sample):
    env, _ = env_of("codedance", sample("codedance"), make_run("timeout", IMAGE))
    observation = step(env, tagged("x"))
    assert (observation.images, observation.results[0].images) == ((), ())


def test_calls_of_one_turn_number_their_images_on(sample):
    results = make_run("ok", IMAGE), make_run("error", error="no"), make_run("ok", IMAGE, IMAGE)
    env, runner = env_of("codedance_call", sample("codedance_call"), *results)
    observation = step(env, "".join(called("codedance_call", code=code) for code in "abc"))
    assert runner.sources == ["a", "b", "c"]
    assert [result.images for result in observation.results] == [(1,), (), (2, 3)]
    assert observation.text.count("<image>") == len(observation.images) == 3


def test_a_sample_must_suit_the_protocol(sample, video):
    with pytest.raises(ConfigError, match="shows code no video"):
        env_of("codev", sample("pyvision_video"))
    with pytest.raises(ConfigError, match="has no video"):
        env_of("pyvision_video", sample("codev"))
    with pytest.raises(InputError, match="there is no video file"):
        env_of("pyvision_video", replace(sample("pyvision_video"), videos=(replace(video, path="nowhere.mp4"),)))


@pytest.mark.parametrize("name", CODE_CARDS)
def test_a_rollout_reads_runs_and_answers(name, sample, tmp_path):
    """The row is prompt, turns and observations; the turn that a stop string ended is closed by the observation."""
    chat = tiny_model.chat()
    turns = ["Look. " + written(name, "plt.show()") + "\nforetold output", DONE]
    found, runner = play(name, sample(name), turns, make_run("ok", IMAGE, output="7"))
    assert (found.stop, runner.closed, len(found.policy_turns)) == (Stop.ANSWERED, 1, 2)
    assert found.answer == ("K" if name.startswith("pyvision") else "\\boxed{K}")
    first, seen, _ = found.turns
    assert isinstance(seen, EnvTurn)
    stopped = bool(code_card(name).reading.stop)
    assert ("foretold" in first.text) != stopped
    assert (first.token_ids[-1] == chat.im_end) != stopped
    assert (seen.token_ids[0] == chat.im_end) == stopped
    text = chat.tokenizer.decode(list(seen.token_ids), skip_special_tokens=False)
    assert text.startswith("<|im_end|>\n<|im_start|>user\n" if stopped else "\n<|im_start|>user\n")
    assert ("<tool_response>" in text) == (code_card(name).writing.turn == "tool")
    row = to_row(found, (1.0, 1.0))
    chat.check_images(row.token_ids, row.images)
    ends = [
        i for i, (token, mask) in enumerate(zip(row.token_ids, row.mask, strict=True)) if mask and token == chat.im_end
    ]
    answered = "</answer>" in code_card(name).reading.stop
    assert len(ends) == 2 - stopped - answered  # what the environment wrote is not trained on
    path = tmp_path / "scored.jsonl"
    scored = Scored(found, Signals({}), None)
    records.append(path, [scored])
    assert list(records.read(path, Scored)) == [scored]
    json.loads(path.read_text(), parse_constant=lambda constant: pytest.fail(constant))


@pytest.mark.parametrize("name", ["pyvision_image", "codev"])
def test_where_an_error_ends_the_trajectory_it_is_recorded(name, sample):
    found, _ = play(name, sample(name), [tagged("1 / 0"), DONE], make_run("error", error="ZeroDivisionError: x"))
    ends = name.startswith("pyvision")
    assert found.stop is (Stop.CALL_FAILED if ends else Stop.ANSWERED)
    assert found.results[0].status == "error"
    assert (found.answer is None) == ends
    lacking, _ = play(name, sample(name), ["I have nothing to say.", DONE])
    assert lacking.stop is (Stop.CALL_FAILED if ends else Stop.ANSWERED)
    assert len(lacking.policy_turns) == 1
    assert [result.status for result in lacking.results] == (["error"] if ends else [])


def test_budgets_of_turns_and_images(sample):
    turns, runs = [tagged("x")] * 4, [make_run("ok", IMAGE) for _ in range(4)]
    found, runner = play("codev", sample("codev"), turns, *runs, limits=replace(LIMITS, max_turns=2))
    assert (found.stop, len(runner.sources)) == (Stop.MAX_TURNS, 2)
    found, _ = play("codev", sample("codev"), turns, make_run("ok", IMAGE, IMAGE), limits=replace(LIMITS, max_images=2))
    assert (found.stop, len(found.images)) == (Stop.MAX_IMAGES, 1)


def test_a_command_line_chooses_a_card_and_changes_a_choice():
    job = compose.load("rl", ["+recipe=toolsrl", "scale=tiny", "+env=codev", "env.protocol.place.limits.wall_s=3"])
    protocol = bind(job.values["env"], "env").keywords["protocol"]
    assert (protocol.name, protocol.place.limits.wall_s) == ("codev", 3.0)
    assert job.origins["env.protocol.reading.both"].startswith("conf/env/codev.yaml:")


@pytest.mark.parametrize("name", ["pyvision_image", "codev"])
def test_a_turn_cut_off_by_its_own_limit_is_a_failed_action_where_the_protocol_ends_there(name, sample):
    prompt = len(play(name, sample(name), [DONE])[0].prompt_ids)
    turn, _ = play(name, sample(name), [DONE], limits=replace(LIMITS, max_turn_tokens=3))
    assert turn.stop is (Stop.CALL_FAILED if name.startswith("pyvision") else Stop.MAX_TOKENS)
    whole, _ = play(name, sample(name), [DONE], limits=replace(LIMITS, max_tokens=prompt + 3))
    assert whole.stop is Stop.MAX_TOKENS  # over length, in every protocol
    for cut in (turn, whole):
        assert (cut.answer, len(cut.policy_turns[0].token_ids)) == (None, 3)
        group = Group(sample(name), (Scored(cut, Signals({}), Verdict(0.0, {})),))
        assert describe([group])["completions/clipped_ratio"] == 1.0
