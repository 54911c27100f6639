"""GRPO in forty lines, for comparison: no cache, no padding, no micro-batches, no chunks; written from the formulas."""
import torch


def sample_row(model, prompt, u, temperature, eos, V):
    """Decode one row by full recomputation: the token is the first whose cumulative probability exceeds u."""
    ids, logps = list(prompt), []
    for x in u.tolist():
        p = (model(input_ids=torch.tensor([ids])).logits[0, -1, :V].double() / temperature).softmax(-1)
        token = int((p.cumsum(0) > x * p.sum()).nonzero()[0])
        ids.append(token)
        logps.append(p[token].log().item())
        if token in eos:
            break
    return ids[len(prompt):], logps


def row_logps(model, prompt, completion, temperature, V):
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1:-1, :V] / temperature
    return logits.log_softmax(-1)[torch.arange(len(completion)), completion]


def grpo_loss(model, prompts, completions, rewards, temperature, V, group, clip=.2, old=None, ref=None, kl_coef=0.,
              aggregation="sequence"):
    """The loss of one update over all rows, differentiable. old, ref: lists of per-row log-probs."""
    terms, total = [], 0.
    for i, completion in enumerate(completions):
        r = rewards[i - i % group:i - i % group + group].to(torch.float64)
        std = r.std()
        A = 0. if r.min() == r.max() else ((rewards[i] - r.mean()) / (std + 1e-6)).item()
        logp = row_logps(model, prompts[i // group], completion, temperature, V)
        ratio = (logp - (logp.detach() if old is None else old[i])).exp()
        loss = -torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A)
        if ref is not None:
            loss = loss + kl_coef * ((ref[i] - logp).exp() - (ref[i] - logp) - 1)
        terms.append(loss)
    for i, loss in enumerate(terms):
        if aggregation == "sequence":
            total = total + loss.mean() / len(terms)
        elif aggregation == "token":
            total = total + loss.sum() / sum(map(len, terms))
        else:
            mates = terms[i - i % group:i - i % group + group]
            total = total + loss.sum() / sum(map(len, mates)) / (len(terms) / group)
    return total
