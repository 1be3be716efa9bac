"""How a private array could come in through each public parameter: a table with a row for every one of them.

A new parameter without a row fails `test_smuggler`. A row names a way, and `WAYS` says how it is shut, or under which
words the statement lists it as public.
"""

WAYS = {
    "records": "it is the private data: read through the gate (rows) or the label gate (columns) alone",
    "function": "a function that is traced, compiled or exported: arrays and callbacks in it are refused",
    "problem": "holds functions and starting values, each with a row of its own",
    "method": "its code is traced: arrays and callbacks in it are refused",
    "start": "an array that is listed as public: starting values",
    "setting": "a number, a text or a list of numbers: an array is refused, numbers are listed as public: settings",
    "declared": "says what is public of the records: listed as public: preprocessing",
    "evaluate": "reads what was released, and test records of its own: the statement says so",
    "trial": "gives what its caller says is private; select states this as its assumption",
    "result": "holds what a run gave, or where it is kept; what goes into a model file is looked at again",
    "arguments": "each of them goes the way that it has in `run.run`",
    "outside": "reaches no model and no statement: how fast, where, or in which words",
}

TABLE: dict[str, dict[str, str]] = {
    "account.account": {
        "method": "method",
        "records": "data",
        "setting": "steps network delta adjacency trust",
        "problem": "problem",
    },
    "auditing.audit": {
        "method": "method",
        "records": "data",
        "setting": "steps network noise trust delta adjacency seed",
        "problem": "problem",
        "outside": "adversary runtime agent level row replacement claimed trials confidence repeat progress",
    },
    "auto.auto": {
        "problem": "problem",
        "records": "data",
        "setting": "epsilon delta network trust adjacency norm steps by_hand",
    },
    "averaged.Averaged": {"setting": "of weight drawn"},
    "method.Bambi": {"setting": "inner_steps batch rate_x rate_y labels directions smoothing cross_terms copies draw"},
    "vertical_sgd.VerticalSgd": {"setting": "batch rate_x rate_y labels draw"},
    "base.Setting": {"setting": "sizes steps network delta"},
    "base.summary": {"outside": "cls"},
    "binomial_sgd.BinomialSgd": {"setting": "rate gradient sampling coins dimension"},
    "calibrate.calibrate": {
        "method": "method",
        "records": "data",
        "setting": "epsilon steps network delta adjacency tolerance trust",
        "problem": "problem",
    },
    "checks.Condition": {"outside": "name holds detail"},
    "columns.Columns": {"records": "blocks upper lower ids", "declared": "facts", "setting": "names"},
    "columns.PrivateColumnsClassifier": {"setting": "epsilon classes steps active random_state path budget"},
    "declarations.Column": {"declared": "range categories missing log"},
    "declarations.Declarations": {"declared": "columns where"},
    "declared.DeclaredTable": {
        "records": "source records owners inputs",
        "declared": "columns label target facts parties unit share notes unknown",
    },
    "declared.table": {"records": "data", "declared": "label features columns party unit weight private share"},
    "dm_hsgd.DmHsgd": {"setting": "rate_x rate_y sampling release_x release_y beta_x beta_y first increment design"},
    "method.DpBilevel": {
        "setting": "step_x inner release_y release_penalised sampling release_x penalty radius sampling_x "
        "inner_penalised solve output warm conditioning",
    },
    "method.DpGradientTracking": {
        "setting": "scheme gradient sampling design form state lipschitz rounds",
    },
    "method.DpMixSgd": {
        "setting": "rate_x rate_y sampling release_x release_y beta_x beta_y first increment design",
    },
    "dp_newton.DpNewton": {"setting": "moments gradient norm rate reach trust least mixing tail losses"},
    "dp_sgd.DpSgd": {"setting": "rate gradient sampling"},
    "f2sa.F2sa": {
        "setting": "step_x inner release_y release_penalised sampling release_x penalty radius sampling_x "
        "inner_penalised solve output warm conditioning",
    },
    "gb_dsbo.GbDsbo": {
        "setting": "step_x step_y average release_x release_h release_y release_matrices sampling smoothness terms "
        "along design",
    },
    "graphs.Network": {"setting": "name size matrices alone"},
    "graphs.complete": {"setting": "n"},
    "graphs.directed": {"setting": "pull push"},
    "graphs.erdos_renyi": {"setting": "n p seed weight"},
    "graphs.exponential": {"setting": "n"},
    "graphs.from_matrix": {"setting": "matrix convention"},
    "graphs.isolated": {"setting": "n"},
    "graphs.regular": {"setting": "n degree seed weight"},
    "graphs.ring": {"setting": "n weight"},
    "graphs.star": {"setting": "n"},
    "implicit.bilevel_objectives": {"outside": "problem upper lower"},
    "implicit.hypergradient": {"outside": "upper lower x y solve steps rate"},
    "implicit.minimise_lower": {"outside": "lower x y rate steps"},
    "label_store.Labels": {"records": "label ids", "setting": "classes path seed budget"},
    "method.LdpDsbo": {
        "setting": "step_x step_y step_z release_y release_z sampling release_x z_radius design constants",
    },
    "ldp_online.LdpOnline": {"setting": "rate gradient sampling design"},
    "ledger.Budget": {"setting": "epsilon delta adjacency"},
    "ledger.Ledger": {"setting": "path"},
    "logistic.PrivateLogisticRegression": {
        "setting": "epsilon delta norm objective classes prior class_weight weight_bound network "
        "trust colluding random_state ledger budget",
    },
    "ma_dsbo.MaDsbo": {
        "setting": "step_x step_y step_z release_x release_y release_z sampling inner_y inner_z design within",
    },
    "model_file.load": {"result": "path"},
    "model_file.save": {"result": "result path table task features holders"},
    "noisy_counts.NoisyCounts": {"setting": "epsilon delta seed path ledger budget draws"},
    "objectives.Bilevel": {
        "function": "upper lower public_upper public_lower project_x predict",
        "start": "x0 y0",
        "declared": "public_constants",
        "setting": "spread",
    },
    "objectives.MinMax": {
        "function": "loss public project_x project_y predict weighted",
        "start": "x0 y0",
        "declared": "public_constants",
        "setting": "spread",
    },
    "objectives.Minimize": {
        "function": "loss public project_x predict linear",
        "start": "x0",
        "declared": "public_constants",
        "setting": "spread",
    },
    "objectives.along": {"outside": "fn x y record z"},
    "objectives.public_along": {"outside": "fn x y z"},
    "parts.Facts": {"declared": "norm unit words bought"},
    "parts.Levels": {"records": "upper lower", "setting": "disjoint"},
    "parts.Part": {"records": "records rows", "setting": "unit name", "declared": "facts"},
    "performance.Performance": {"outside": "chunk devices progress share"},
    "picture.draw": {"outside": "network ax"},
    "population.Population": {"setting": "sizes unit names shared apart facts record purchases"},
    "preprocess.Ranges": {"declared": "low high"},
    "preprocess.bounded_norm": {"declared": "features bound"},
    "preprocess.check_records": {"outside": "records classes"},
    "dp_grid.DpGrid": {"setting": "grid gradient sampling validation memory"},
    "quantized_sgd.QuantizedSgd": {"setting": "rate gradient sampling weight resolution design"},
    "release.Release": {"setting": "clip noise mechanism name"},
    "report.PrivacyReport": {
        "result": "epsilon delta per_agent per_level published design adjacency unit accountant library method "
        "steps events caveats parties attack drawn spent states against",
    },
    "result.Model": {"result": "x y privacy predictor"},
    "result.Result": {"result": "x y agents history privacy releasable predictor about public_constants public_test"},
    "ridge.PrivateRidge": {
        "setting": "epsilon delta label_range alpha norm weight_bound network "
        "trust colluding random_state ledger budget",
    },
    "run.run": {
        "problem": "problem",
        "records": "data",
        "method": "method",
        "setting": "steps network trust epsilon delta adjacency budget ledger noise seed",
        "evaluate": "evaluate",
        "outside": "every out resume performance public_test",
    },
    "run.run_many": {"arguments": "runs"},
    "sampling.FixedSize": {"setting": "batch"},
    "sampling.OnePass": {"setting": "batch"},
    "sampling.Poisson": {"setting": "batch cut"},
    "sampling.Stream": {"setting": "arrivals"},
    "sampling.WithReplacement": {"setting": "batch"},
    "scaler.DeclaredScaler": {"declared": "columns default"},
    "schedules.Constant": {"setting": "value"},
    "schedules.Decay": {"setting": "value power offset"},
    "schedules.Linear": {"setting": "start stop steps"},
    "schedules.Listed": {"setting": "rows"},
    "schedules.Ratio": {"setting": "top bottom"},
    "schedules.Scaled": {"setting": "of factor"},
    "schedules.as_drawn": {"outside": "value times agents"},
    "schedules.charged": {"outside": "value times agent"},
    "schedules.same_for_all": {"outside": "value"},
    "schedules.schedule": {"setting": "value"},
    "schedules.settled": {"outside": "value steps agents"},
    "schedules.told_by_fields": {"outside": "value"},
    "select.select": {
        "trial": "candidates score",
        "setting": "epsilon delta trials stopping disjoint seed ledger budget party",
    },
    "dp_sgda.DpSgda": {"setting": "rate_x rate_y sampling release_x release_y"},
    "dp_sgda.Sgda": {"setting": "rate_x rate_y sampling release_x release_y"},
    "sources.available": {"outside": "name root"},
    "sources.load": {"outside": "name root image pool"},
    "split.levels": {"records": "parts upper", "setting": "seed"},
    "split.split": {"records": "records", "setting": "agents by skew alpha sizes seed unit names"},
    "table.Table": {"records": "columns labels", "setting": "active"},
    "trust.Sum": {"setting": "colluding"},
    "ternary_sgd.TernarySgd": {"setting": "rate message sampling threshold weight"},
    "tuned.TunedLogisticRegression": {
        "setting": "epsilon delta groups norm penalty validation steps inner_steps tuning_rate clip classes "
        "trust colluding random_state ledger budget",
    },
    "vertical.Vertical": {
        "function": "embed head losses penalty alter",
        "start": "x0 y0",
        "declared": "public_constants",
    },
    "vr_dsbo.VrDsbo": {
        "setting": "rate release_x release_y release_z sampling alpha_x alpha_y beta_x beta_y smoothness terms design",
    },
    "weighted_erm.WeightedErm": {"setting": "rate gradient sampling"},
}
