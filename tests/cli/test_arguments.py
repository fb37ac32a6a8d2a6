"""Arguments that several commands share."""


def test_a_data_root_in_the_environment_that_is_a_file(moon, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.setenv("MOON_DATA", "notes.txt")
    assert "(MOON_DATA)" in moon("data")[2]


def test_a_data_root_that_does_not_exist_matters_where_data_are_read(moon):
    for command in (("train", "cifar10"), ("train", "pets"), ("grid", "cifar10"), ("data", "verify")):
        code, _, err = moon(*command, "--data", "nowhere")
        assert code in (2, 3), command
        assert "nowhere" in err, command
        assert "does not exist" in err, command
    assert (
        moon("train", "digits", "--preset", "plain", "--epochs", "1", "--data", "nowhere", "--topology", "dense")[0]
        == 0
    )
