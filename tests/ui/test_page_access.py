"""Who gets an answer from the page (S3): keys, cookies, hosts, origins, and folders outside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from page_client import KEY, PageClient

from loopwright.cli.server_key import own_key
from loopwright.cli.ui import KEY_VARIABLE, kept_key, opening
from loopwright.errors import RunError
from loopwright.runs.run_folder import RunFolder
from loopwright.ui.app import OF_A_RUN

QUESTIONS = ["/api/runs", "/api/events?run=adding", *(f"/api/runs/adding{end}" for end in OF_A_RUN)]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("key", [None, "lwk_another-key-than-the-right-one", ""])
async def test_without_the_key_nothing_is_told(made_up_run: RunFolder, question: str, key: str | None) -> None:
    async with PageClient(made_up_run.path.parent, key) as page:
        answer = await page.get(question)
    assert answer.status_code == 401
    assert "loopwright ui" in answer.json()["error"]["remedy"]


async def test_the_key_is_traded_for_a_cookie_that_scripts_cannot_read(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path, None) as page:
        assert (await page.post("/api/login", content="lwk_wrong")).status_code == 401
        assert not page.cookies
        traded = await page.post("/api/login", content=KEY, headers={"origin": "http://127.0.0.1:8080"})
        assert traded.status_code == 204
        cookie = traded.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert KEY not in cookie
        assert (await page.get("/api/runs")).status_code == 200


async def test_a_cookie_of_another_port_does_not_open_this_one(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path, None) as page:
        await page.post("/api/login", content=KEY)
        (name,) = page.cookies
        assert name == "loopwright_8080"
        page.cookies.clear()
        page.cookies.set(name.replace("8080", "8081"), "x")
        assert (await page.get("/api/runs")).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"host": "localhost:8080", "origin": "http://localhost:8080"}, 200),
    ],
)
async def test_only_pages_of_this_server_may_ask(made_up_run: RunFolder, headers: dict[str, str], status: int) -> None:
    async with PageClient(made_up_run.path) as page:
        assert (await page.get("/api/runs", headers=headers)).status_code == status


async def test_the_page_itself_holds_no_data_and_allows_nothing_from_elsewhere(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path, None) as page:
        for path in ("/", "/run/adding/step/1", "/static/js/app.js", "/api/runs", "/nowhere"):
            answer = await page.get(path)
            assert answer.headers["content-security-policy"].startswith("default-src 'self'")
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "adding" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(made_up_run: RunFolder, method: str) -> None:
    async with PageClient(made_up_run.path) as page:
        for question in QUESTIONS:
            assert (await page.request(method, question)).status_code in (404, 405)


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "%2e%2e",
        "..%2fsecret",
        "%2e%2e%2fsecret",
        "a%2f..%2f..%2fsecret",
        "%00",
        "a%00",
        "linked",
        "a" * 5000,
    ],
)
async def test_no_name_leads_out_of_the_folder(made_up_run: RunFolder, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    shutil.copytree(made_up_run.path, secret)
    (made_up_run.path.parent / "linked").symlink_to(secret)
    async with PageClient(made_up_run.path.parent) as page:
        answer = await page.get(f"/api/runs/{name}/steps")
        assert answer.status_code in (403, 404)
        listed = await page.json("/api/runs")
        assert [run["name"] for run in listed["runs"]] == ["adding"]


@pytest.mark.parametrize("path", ["../app.py", "%2e%2e/app.py", "..%2f..%2fapp.py", "/etc/passwd"])
async def test_no_path_leads_out_of_the_pages_files(made_up_run: RunFolder, path: str) -> None:
    async with PageClient(made_up_run.path) as page:
        answer = await page.get(f"/static/{path}")
        assert "def page_app" not in answer.text
        assert "root:" not in answer.text


LINKS = {
    "rollouts.sqlite": "steps",
    "metrics.jsonl": "metrics",
    "events.jsonl": "timeline",
    "archive": "rollout",
    "tokenizer": "tokens",
    "rejudged": "rollout",
}
"""What of a run may be a link, and the question that would follow it."""


@pytest.mark.parametrize("name", LINKS)
async def test_a_link_inside_of_a_run_leads_nowhere(made_up_run: RunFolder, tmp_path: Path, name: str) -> None:
    outside, inside = tmp_path / "outside", made_up_run.path / name
    if inside.exists():
        inside.rename(outside)
    else:
        outside.mkdir()
        (outside / "other").mkdir()
    inside.symlink_to(outside)
    async with PageClient(made_up_run.path) as page:
        answer = await page.get(f"/api/runs/adding/{LINKS[name]}", params={"key": "train/0/0/0"})
    assert answer.status_code == 403
    assert "leads out" in answer.json()["error"]["message"]


async def test_a_link_in_the_archive_leads_nowhere(made_up_run: RunFolder, tmp_path: Path) -> None:
    (made_up_run.path / "archive").mkdir()
    (made_up_run.path / "archive" / "step-000001.parquet").symlink_to(tmp_path / "outside")
    async with PageClient(made_up_run.path) as page:
        answer = await page.get("/api/runs/adding/rollout", params={"key": "train/0/0/0"})
    assert answer.status_code == 403


def test_one_run_is_served_alone(made_up_run: RunFolder) -> None:
    from loopwright.errors import RefusedError
    from loopwright.ui.served import ServedRuns

    shutil.copytree(made_up_run.path, made_up_run.path.parent / "beside")
    alone = ServedRuns(made_up_run.path)
    assert alone.names() == ["adding"]
    with pytest.raises(RefusedError):
        alone.view("beside")
    with pytest.raises(RunError, match="is not a folder"):
        ServedRuns(made_up_run.path / "config.yaml")


def test_the_link_has_the_key_only_for_a_person(tmp_path: Path) -> None:
    file = tmp_path / "page.key"
    assert opening("http://127.0.0.1:1/", KEY, file, to_a_person=True) == f"http://127.0.0.1:1/#key={KEY}"
    told = opening("http://127.0.0.1:1/", KEY, file, to_a_person=False)
    assert KEY not in told
    assert str(file) in told


def test_each_place_has_a_key_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    places = [tmp_path / name for name in ("lr-1e-3.seed1", "lr-1e-3.seed2", "v1.5/run", "v1.6/other")]
    keys = [own_key(None, KEY_VARIABLE, kept_key(place)) for place in places]
    assert len({key for key, _ in keys}) == len(places)
    assert own_key(None, KEY_VARIABLE, kept_key(places[0])) == keys[0], "a page that comes back has the same key"
