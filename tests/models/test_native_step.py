"""Native decode steps compute what the model does, in vectors of every width, for whoever else is in the batch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from loopwright.models.forward import ModuleForward
from loopwright.models.lean import LeanForward, LeanModel
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.native import step as step_module
from loopwright.models.native.cells import STRIDE, Cells
from loopwright.models.native.library import FLAGS, Library, library
from loopwright.models.native.step import MOST_QUERIES, NativeStep, serves
from loopwright.models.plans import Chunk, ChunkPlan
from loopwright.models.probe import Probe, run_probe
from loopwright.models.recognise import fastest_forward
from loopwright.models.workspace import Heads, Sizes
from loopwright.testing.tiny import SHAPE, tiny_llama, tiny_qwen2, tiny_qwen3, tiny_tokenizer

WIDTHS = {4: (2, 4), 8: (2, 6), 16: (3, 8)}
"""Lanes, with the panels and rows that decode.c takes for them. Wider ones than the processor's work in parts."""


def compiled(lanes: int) -> Library:
    """With as many threads as torch has, on steps of any size."""
    wide, rows = WIDTHS[lanes]
    sizes = f"-DLANES={lanes}", f"-DWIDE={wide}", f"-DROWS={rows}", "-DSMALL_STEP=0"
    found = library(None, (*FLAGS, *sizes, "-Wno-psabi"))
    assert isinstance(found, Library)
    assert (found.lanes, found.panel) == (lanes, lanes * wide)
    return found


def biased_llama(folder: Path) -> Path:
    return tiny_llama(folder, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)


def mistral(folder: Path, window: int = 70) -> Path:
    """With a window that ends inside of prompts and of answers."""
    torch.manual_seed(0)
    MistralForCausalLM(MistralConfig(vocab_size=300, sliding_window=window, **SHAPE)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def odd_llama(folder: Path) -> Path:
    """Seven queries to a head of keys, and sizes that fill no panel."""
    odd = {"num_attention_heads": 14, "hidden_size": 56, "intermediate_size": 37, "head_dim": 48}
    return tiny_llama(folder, **odd)


def loaded_from(make: Callable[[Path], Path], folder: Path) -> LoadedModel:
    loaded = load_model(str(make(folder)), cache=folder)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in loaded.model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return loaded


class _Keeping:
    """A plan that keeps what one sequence's layers ask with."""

    def __init__(self, tokens: int) -> None:
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._plan = ChunkPlan([Chunk(0, tokens)])

    def attend(self, layer: int, query: Any, key: Any, value: Any, **others: Any) -> torch.Tensor:
        self.layers.append((key[0].clone(), value[0].clone()))
        return self._plan.attend(layer, query, key, value, **others)


class House:
    """Streams of random tokens, whose last ones are to be decoded, and what the model says after each."""

    def __init__(self, loaded: LoadedModel, lengths: list[tuple[int, int]]) -> None:
        """`lengths` are those of the prompt and of what comes behind it; equal prompts lengths are one prompt, and one
        of 0 is none that anybody shares."""
        self.model = _lean(loaded)
        generator = torch.Generator().manual_seed(0)
        prompts = {n: torch.randint(0, 290, (n,), generator=generator) for n, _ in sorted(set(lengths))}
        self.streams = [
            torch.cat([prompts[before], torch.randint(0, 290, (own,), generator=generator)]) for before, own in lengths
        ]
        self.lengths = lengths
        plans = [_Keeping(len(stream)) for stream in self.streams]
        forward = LeanForward(self.model)
        self.expected = torch.stack(
            [
                forward.logits(stream, torch.arange(len(stream)), plan, None)[-1]
                for stream, plan in zip(self.streams, plans, strict=True)
            ]
        )
        self._kept = [plan.layers for plan in plans]

    def logits(self, native: NativeStep, chosen: list[int] | None = None) -> torch.Tensor:
        """After the newest tokens of the chosen streams, all of whose other keys are there."""
        chosen = list(range(len(self.streams))) if chosen is None else chosen
        ids = torch.stack([self.streams[i][-1] for i in chosen])
        positions = torch.tensor([len(self.streams[i]) - 1 for i in chosen])
        return native.logits(ids, positions, self.cells(chosen))

    def cells(self, chosen: list[int]) -> Cells:
        prompts = sorted({self.lengths[i][0] for i in chosen} - {0})
        # Of the same stream whoever is chosen: torch computes the last bits of a prompt's keys by what stands behind.
        first = {before: i for i, (before, _) in enumerate(self.lengths)}
        # Arena 0 has the prompts, 1 all that comes behind them.
        cells = [
            (1, row, own, *((0, prompts.index(before), before) if before else (-1, -1, 0)))
            for row, (before, own) in enumerate(self.lengths[i] for i in chosen)
        ]
        keys, values = [], []
        for layer in range(len(self.model.layers)):
            shared = [tuple(x[:, :length] for x in self._kept[first[length]][layer]) for length in prompts]
            own = [tuple(x[:, self.lengths[i][0] : -1] for x in self._kept[i][layer]) for i in chosen]
            pairs = [self._arena(shared), self._arena(own)]
            keys.append([key for key, _ in pairs])
            values.append([value for _, value in pairs])
        return Cells(cells, keys, values)

    def _arena(self, rows: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
        heads = self.model.sizes.heads
        longest = max([1, *(key.shape[1] + 1 for key, _ in rows)])
        capacity = -(-longest // STRIDE) * STRIDE
        # What nobody may look at is no number.
        keys = torch.full((max(1, len(rows)), heads.keys, heads.dim, capacity), float("nan"))
        values = torch.full((max(1, len(rows)), heads.keys, capacity, heads.dim), float("nan"))
        for row, (key, value) in enumerate(rows):
            keys[row, :, :, : key.shape[1]] = key.transpose(1, 2)
            values[row, :, : value.shape[1]] = value
        return keys, values


def _lean(loaded: LoadedModel) -> LeanModel:
    assert isinstance(loaded.forward, LeanForward)
    return loaded.forward.model


LENGTHS = [(0, 1), (0, 7), (0, 64), (0, 65), (0, 150), *[(90, n) for n in range(1, 12)], (5, 3), (5, 70), (130, 1)]
"""More behind one prompt than look at it together, keys of several chunks, sequences that share nothing."""


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("make", [tiny_llama, biased_llama, odd_llama, tiny_qwen2, tiny_qwen3, mistral])
def test_a_step_computes_what_the_model_does(make: Callable[[Path], Path], lanes: int, tmp_path: Path) -> None:
    house = House(loaded_from(make, tmp_path), LENGTHS)
    native = NativeStep(house.model, compiled(lanes))
    assert torch.allclose(house.logits(native), house.expected, rtol=1e-4, atol=1e-4)
    for few in range(1, 9):
        chosen = list(range(few))
        assert torch.allclose(house.logits(native, chosen), house.expected[:few], rtol=1e-4, atol=1e-4)


def test_what_a_sequence_gets_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    house = House(loaded_from(tiny_qwen3, tmp_path), LENGTHS)
    native = NativeStep(house.model, compiled(8))
    alone = torch.cat([house.logits(native, [i]) for i in range(len(LENGTHS))])
    assert torch.equal(house.logits(native), alone)
    assert torch.equal(house.logits(native, list(range(len(LENGTHS)))[::-1]), alone.flip(0))


def larger_llama(folder: Path) -> Path:
    """Large and uneven enough that threads overtake one another."""
    sizes = {"hidden_size": 192, "intermediate_size": 420, "num_hidden_layers": 6, "num_key_value_heads": 3}
    return tiny_llama(folder, num_attention_heads=12, **sizes)


@pytest.mark.parametrize("steps", [60, pytest.param(1000, marks=pytest.mark.real)])
def test_threads_wait_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    house = House(loaded_from(larger_llama, tmp_path), LENGTHS)
    alone = house.logits(NativeStep(house.model, compiled(8)))
    assert torch.allclose(alone, house.expected, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    native, cells = NativeStep(house.model, compiled(8)), house.cells(list(range(len(LENGTHS))))
    ids, positions = torch.stack([s[-1] for s in house.streams]), torch.tensor([len(s) - 1 for s in house.streams])
    for _ in range(steps):
        assert torch.equal(native.logits(ids, positions, cells), alone)


def test_another_default_of_torch_changes_nothing(tmp_path: Path) -> None:
    """It is one for the whole process, and another while somebody loads a model in half precision."""
    house = House(loaded_from(tiny_llama, tmp_path), LENGTHS)
    right = house.logits(NativeStep(house.model, compiled(8)))
    cells = house.cells(list(range(len(LENGTHS))))
    ids, positions = torch.stack([s[-1] for s in house.streams]), torch.tensor([len(s) - 1 for s in house.streams])
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(NativeStep(house.model, compiled(8)).logits(ids, positions, cells), right)
    finally:
        torch.set_default_dtype(torch.float32)


def test_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    house = House(loaded_from(tiny_llama, tmp_path), LENGTHS)
    native, cells = NativeStep(house.model, compiled(8)), house.cells([0, 1])
    for ids in (torch.tensor([1]), torch.tensor([1, 2, 3]), torch.tensor([1, 2], dtype=torch.int32)):
        with pytest.raises(RuntimeError, match="2 sequences were told of"):
            native.logits(ids, torch.arange(len(ids)), cells)


def test_the_newest_keys_and_values_are_kept(tmp_path: Path) -> None:
    house = House(loaded_from(tiny_llama, tmp_path), [(0, 40), (90, 5)])
    cells = house.cells([0, 1])
    ids, positions = torch.stack([stream[-1] for stream in house.streams]), torch.tensor([39, 94])
    NativeStep(house.model, compiled(8)).logits(ids, positions, cells)
    keys, values = cells._held[:2]
    for layer, row, place in [(0, 0, 39), (1, 0, 39), (0, 1, 4), (1, 1, 4)]:
        key, value = house._kept[row][layer]
        assert torch.allclose(keys[layer][1][row, :, :, place], key[:, -1], atol=1e-5)
        assert torch.allclose(values[layer][1][row, :, place], value[:, -1], atol=1e-5)


def test_it_computes_by_the_weights_of_its_first_step(tmp_path: Path) -> None:
    loaded = loaded_from(tiny_llama, tmp_path)
    house = House(loaded, [(0, 5)])
    native = NativeStep(house.model, compiled(8))
    first = house.logits(native)
    with torch.no_grad():
        loaded.model.model.layers[0].mlp.down_proj.weight.mul_(20)
    assert torch.equal(house.logits(native), first)
    changed = House(loaded, [(0, 5)])
    again = changed.logits(NativeStep(house.model, compiled(8)))
    assert not torch.allclose(again, first, atol=1e-2)
    assert torch.allclose(again, changed.expected, rtol=1e-4, atol=1e-4)


def test_what_is_not_a_number_stays_not_a_number(tmp_path: Path) -> None:
    loaded = loaded_from(tiny_llama, tmp_path)
    house = House(loaded, [(0, 5), (0, 70)])
    for name in ("self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj"):
        weight = loaded.model.get_submodule(f"model.layers.1.{name}").weight
        with torch.no_grad():
            kept, weight[3, 2] = weight[3, 2].clone(), float("nan")
        assert house.logits(NativeStep(house.model, compiled(8))).isnan().all()
        with torch.no_grad():
            weight[3, 2] = kept


def test_large_numbers_overflow_nowhere(tmp_path: Path) -> None:
    """Gates and scores far beyond where e^x ends."""
    loaded = loaded_from(tiny_llama, tmp_path)
    with torch.no_grad():
        for layer in loaded.model.model.layers:
            layer.mlp.gate_proj.weight.mul_(300)
            layer.self_attn.q_proj.weight.mul_(100)
    house = House(loaded, [(0, 5), (90, 70)])
    found = house.logits(NativeStep(house.model, compiled(8)))
    assert torch.allclose(found, house.expected, rtol=1e-3, atol=1e-3 * float(house.expected.abs().max()))


def test_rows_that_a_vector_would_leave_are_refused() -> None:
    keys, values = torch.zeros(1, 2, 16, 40), torch.zeros(1, 2, 40, 16)
    with pytest.raises(RuntimeError, match="multiples of 32 keys"):
        Cells([(0, 0, 1, -1, -1, 0)], [[keys]], [[values]])


@pytest.mark.parametrize(
    ("heads", "served"),
    [
        (Heads(4, 2, 16), True),
        (Heads(4, 2, 12), False),
        (Heads(5, 2, 16), False),
        (Heads(MOST_QUERIES * 2, 2, 16), True),
        (Heads(MOST_QUERIES * 2 + 2, 2, 16), False),
    ],
)
def test_models_of_other_shapes_are_left_to_torch(heads: Heads, served: bool, tmp_path: Path) -> None:
    model = _lean(loaded_from(tiny_llama, tmp_path))
    sizes = Sizes(heads, model.sizes.hidden, model.sizes.inner)
    assert serves(replace(model, sizes=sizes), compiled(8)) is served


def test_layers_of_several_sizes_are_left_to_torch(tmp_path: Path) -> None:
    model = _lean(loaded_from(tiny_llama, tmp_path))
    other = _lean(loaded_from(lambda folder: tiny_llama(folder, intermediate_size=80), tmp_path))
    assert serves(model, compiled(8))
    assert not serves(replace(model, layers=[model.layers[0], other.layers[1]]), compiled(8))


def test_large_models_keep_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _lean(loaded_from(tiny_llama, tmp_path))
    assert LeanForward(model, compiled(8)).native() is not None
    monkeypatch.setattr(step_module, "LARGEST", 1000)
    assert LeanForward(model, compiled(8)).native() is None


@pytest.mark.parametrize("row", range(14))
def test_a_library_that_computes_something_else_is_not_used(
    row: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In any row of a batch: another part of the code may have computed it."""
    loaded, right = loaded_from(tiny_llama, tmp_path), compiled(8)

    def wrong(model: Any, batch: Any, floats: Any, ends: Any, logits: ctypes.c_void_p, threads: Any) -> None:
        right.functions.loopwright_step(model, batch, floats, ends, logits, threads)
        one = (logits.value or 0) + 4 * row * len(loaded.model.get_input_embeddings().weight)
        ctypes.c_float.from_address(one).value += 10.0

    functions: Any = SimpleNamespace(loopwright_step=wrong, loopwright_pack=right.functions.loopwright_pack)
    own = run_probe(ModuleForward(loaded.model), Probe.of(loaded.model, loaded.max_context))
    assert fastest_forward(loaded.model, own, lambda: right).native() is not None
    assert fastest_forward(loaded.model, own, lambda: replace(right, functions=functions)).native() is None
    assert "it decodes with torch" in caplog.text
