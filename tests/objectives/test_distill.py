import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon import Distill, LogitNorm, Mixup, Moon, RotPred, T2FNorm, Teacher, open_head, rotation_head
from moon.objectives.distill import distillation_loss
from moon.objectives.logitnorm import normalised


def batch(count=8):
    return torch.randn(count, 1, 8, 8), torch.arange(count) % 4


def fixed(logits):
    """A model with these logits for the input 1."""
    model = nn.Linear(1, len(logits), bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(logits)[:, None])
    return model


def test_formula_by_hand():
    # At T = 2, logits of 2 log p become p again. The mean of the teachers (3/4, 1/4) and (1/4, 3/4) is uniform.
    log = math.log
    teachers = [fixed([2 * log(3), 0.0]), fixed([0.0, 2 * log(3)])]
    student, x, y = fixed([2 * log(4), 0.0]), torch.ones(1, 1), torch.tensor([0])  # (4/5, 1/5) at T = 2
    divergence = 0.5 * log(0.5 / 0.8) + 0.5 * log(0.5 / 0.2)
    terms = Distill(teachers, teacher_share=0.3, teacher_temperature=2.0).terms(student, x, y, epoch=0)
    assert terms["teachers"].item() == pytest.approx(0.3 * 4 * divergence)
    assert terms["cross_entropy"].item() == pytest.approx(0.7 * log(1 + 1 / 16))


def test_the_gradient_is_that_of_soft_labels():
    # d/dz T^2 KL(p || softmax(z / T)) = T (softmax(z / T) - p).
    student = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 4, dtype=torch.float64)
    distillation_loss(student, [teacher], 4.0).backward()
    expected = 4.0 * ((student / 4).softmax(1) - (teacher / 4).softmax(1)) / 3
    torch.testing.assert_close(student.grad, expected)


def test_a_student_that_agrees_with_its_teacher_learns_nothing_from_it(small_net):
    teacher = small_net().eval()
    student, (x, y) = copy.deepcopy(teacher), batch()
    term = Distill([teacher]).terms(student, x, y, epoch=0)["teachers"]
    assert term.item() == pytest.approx(0, abs=1e-6)
    gradients = torch.autograd.grad(term, list(student.parameters()))
    assert all(gradient.abs().max() < 1e-5 for gradient in gradients)


def test_the_unknown_output_counts_if_all_have_it(small_net):
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    opened, closed = torch.tensor([[0.0, 1.0, 5.0]]), torch.tensor([[0.0, 1.0]])
    every = distillation_loss(logits, [opened], 1.0)
    p, q = opened.softmax(1), logits.softmax(1)
    torch.testing.assert_close(every, (p * (p / q).log()).sum())
    known = distillation_loss(logits, [opened, closed], 1.0)  # one has no unknown output
    p, q = closed.softmax(1), logits[:, :2].softmax(1)
    torch.testing.assert_close(known, (p * (p / q).log()).sum())
    with pytest.raises(ValueError, match=r"have \[2, 4\] outputs; they must know the same classes"):
        distillation_loss(logits[:, :2], [torch.zeros(1, 4)], 1.0)


@pytest.mark.parametrize("objective", [LogitNorm(0.1), LogitNorm(0.1, Moon(0.5)), T2FNorm(0.2), None])
def test_a_teacher_gives_the_logits_of_its_loss(objective, small_net):
    model, (x, _) = small_net(), batch()
    found = Teacher(model, objective)(x)
    assert not found.requires_grad
    assert model.training
    model.eval()
    if isinstance(objective, T2FNorm):
        h = model[:6](x)
        expected = model[6](h / (0.2 * h.norm(dim=1, keepdim=True)))
    else:
        expected = model(x) if objective is None else normalised(model(x), 0.1)
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("objective", [None, LogitNorm(0.1), T2FNorm(0.2)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_teacher_with_a_precision_gives_the_same_logits(objective, dtype, tolerance, small_net):
    model, x = small_net().to(dtype), batch()[0].to(dtype)
    expected = Teacher(model, objective)(x)
    teacher = Teacher(model, objective, torch.float32)
    torch.testing.assert_close(teacher(x), expected, rtol=tolerance, atol=tolerance)
    with torch.autocast("cpu", torch.bfloat16):  # the precision of a teacher is its own
        torch.testing.assert_close(teacher(x), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 warns once
@pytest.mark.parametrize("objective", [None, LogitNorm(0.1), T2FNorm(0.2)])
def test_a_teacher_in_low_precision_computes_as_under_autocast(objective, small_net):
    model, (x, _) = small_net(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        expected = Teacher(model, objective)(x)
    teacher = Teacher(model, objective, torch.bfloat16)
    found = teacher(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert not torch.equal(found, Teacher(model, objective)(x))
    assert not torch.equal(found, found.bfloat16().float())  # the classifier computes in float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(teacher(x), found)
    assert model.training
    assert list(teacher.state_dict()) == list(Teacher(model, objective).state_dict())  # the copy is not in the state


def test_a_teacher_in_low_precision_is_moved_and_converted(small_net):
    model, (x, _) = small_net(), batch()
    objective = Distill([Teacher(model, None, torch.bfloat16)])
    objective.double()  # from the weights of the network, not from rounded ones
    (teacher,) = objective.teachers
    expected = copy.deepcopy(model).eval()(x.double()).detach()
    torch.testing.assert_close(teacher(x.double()), expected, rtol=1e-12, atol=1e-12)
    objective.to("meta")
    assert teacher._copy[0].weight.is_meta
    assert not objective.state_dict()


def test_teachers_are_neither_trained_nor_saved(small_net):
    teacher, (x, y) = small_net(), batch()
    objective = Distill([teacher])
    before = copy.deepcopy(teacher.state_dict())
    objective(small_net(), x, y, epoch=0).backward()
    assert not list(objective.parameters())
    assert not objective.state_dict()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(torch.equal(value, before[key]) for key, value in teacher.state_dict().items())  # BatchNorm, too
    assert objective.double().teachers[0].model[6].weight.dtype == torch.float64  # but converted and moved


def test_teachers_see_the_images_of_the_student(small_net):
    # Mixup blends them: teacher and student must see the same blends.
    seen = []

    class Seeing(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net()

        def forward(self, x):
            seen.append(x)
            return self.net(x)

    teacher, student, (x, y) = Seeing(), Seeing(), batch()
    Distill([teacher], inner=Mixup(1.0))(student, x, y, epoch=0)
    assert len(seen) == 2
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], x)


def test_teachers_are_not_asked_about_rotated_images(small_net):
    asked = []
    teacher, (x, y) = small_net(), batch()
    teacher.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0]))
    Distill([teacher], inner=RotPred())(rotation_head(small_net()), x, y, epoch=0)
    assert len(asked) == 1
    assert torch.equal(asked[0], x)


def test_it_is_composed_with_other_objectives(small_net):
    model, (x, y) = open_head(small_net()).eval(), batch()
    teacher = open_head(small_net()).eval()
    terms = Distill([teacher], 0.5, 2.0, inner=Moon(0.7)).terms(model, x, y, epoch=0)
    torch.testing.assert_close(terms["unknown_aware"], 0.5 * Moon(0.7).loss(model(x), y, epoch=0))
    inside = LogitNorm(0.1, Distill([teacher], 0.5, 2.0)).terms(model, x, y, epoch=0)  # normalised logits are taught
    z = normalised(model(x), 0.1)
    torch.testing.assert_close(inside["cross_entropy"], 0.5 * cross_entropy(z, y))
    torch.testing.assert_close(inside["teachers"], 0.5 * distillation_loss(z, [teacher(x)], 2.0))


def test_invalid_arguments_are_rejected(small_net):
    with pytest.raises(ValueError, match="at least one teacher"):
        Distill([])
    for options in ({"teacher_share": 1.5}, {"teacher_temperature": 0.0}, {"teacher_temperature": math.inf}):
        with pytest.raises(ValueError, match=r"teacher_share=.* must be in \[0, 1\]"):
            Distill([small_net()], **options)
