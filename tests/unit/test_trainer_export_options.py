"""``python -m trainer.export``: a mistake is one line and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer import export


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/nowhere", "{tmp}/out"], "nowhere"),
        (["{tmp}", "{tmp}/out", "--dtyp", "bf16"], "--dtype"),
        (["{tmp}", "{tmp}/out", "--dtype", "int8"], "'int8' is not one of"),
        (["{tmp}"], "Missing argument 'OUT'"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        export.main([a.format(tmp=tmp_path) for a in arguments])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "out").exists()


def test_an_interrupt_and_a_short_dtype(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(
        export, "export_checkpoint", lambda *_, dtype, max_shard_size, form: asked.append(dtype)
    )
    assert export.run([str(tmp_path), "out", "--dtype", "bf16"]) == 0 and asked == ["bfloat16"]
    assert capsys.readouterr().out == "out\n"

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "export_checkpoint", interrupt)
    assert export.run([str(tmp_path), "out"]) == 130
    assert capsys.readouterr().err == "error: interrupted; nothing was written\n"
