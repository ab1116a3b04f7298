# Both rules write the same tables; which one runs depends on whether there is a GPU.
TABLES = ["runs", "builds", "points", "samples"]

if GPU:

    # What is measured already is kept in results/{device}/journal, which no rule owns: running this
    # again measures only what is new. Progress goes to the terminal, hence no log of stderr.
    rule measure_points:
        input:
            plan="results/{device}/plan.parquet",
            builds=build_files("parquet", ARCHITECTURES),
        output:
            multiext("results/{device}/", *[f"{name}.parquet" for name in TABLES]),
        log:
            "results/logs/measure/{device}.log",
        threads: 1
        resources:
            gpu=1,
            host=100,
        message:
            "Check and time on {GPU.name}"
        shell:
            "ladder measure --plan {input.plan} --builds results/build"
            " --out results/{wildcards.device} > {log}"

else:

    rule replay_points:
        input:
            plan="results/{device}/plan.parquet",
            builds=build_files("parquet", ARCHITECTURES),
            published=sorted(
                str(path)
                for path in Path(f"results/published/{SETTINGS.gpu.replay}").glob(
                    "*.parquet"
                )
            ),
        output:
            multiext(
                "results/{device}/",
                *[f"{name}.parquet" for name in [*TABLES, "ceilings", "accuracy"]],
            ),
        log:
            "results/logs/replay/{device}.log",
        message:
            "No GPU here: replay {SETTINGS.gpu.replay}"
        shell:
            "ladder replay --plan {input.plan} --builds results/build"
            " --out results/{wildcards.device} > {log} 2>&1"


if GPU:

    # After the times: a profiler slows whatever runs beside it. What is counted already is kept in
    # results/{device}/profile, which no rule owns. Where counters cannot be read, rows say why.
    rule profile_points:
        input:
            plan="results/{device}/plan.parquet",
            builds=build_files("parquet", ARCHITECTURES),
            runs="results/{device}/runs.parquet",
            points="results/{device}/points.parquet",
        output:
            counters="results/{device}/hardware.parquet",
        log:
            "results/logs/profile/{device}.log",
        threads: 1
        resources:
            gpu=1,
            host=100,
        message:
            "Read hardware counters on {GPU.name}"
        shell:
            "ladder profile --plan {input.plan} --builds results/build"
            " --out results/{wildcards.device} > {log}"


rule collect_counters:
    input:
        plan="results/{device}/plan.parquet",
        emulated=emulated_table(),
        profiled=profiled_tables(),
    output:
        counters="results/{device}/counters.parquet",
    log:
        "results/logs/counters/{device}.log",
    message:
        "Gather the counters of {wildcards.device}"
    shell:
        "ladder counters --plan {input.plan} --out {output.counters} {input.emulated:q}"
        " {input.profiled:q} > {log} 2>&1"
