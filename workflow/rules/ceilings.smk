# What the GPU can do at most, for the rooflines and for the model of each step. Its code is the
# project's own and its sizes are the GPU's, so that it is measured once.
if GPU:

    rule measure_ceilings:
        input:
            sources=sorted(str(path) for path in Path("kernels/ceilings").glob("*.cu*")),
            # After the times, whose clocks it must not disturb; a new point measures no ceiling anew.
            runs=ancient("results/{device}/runs.parquet"),
        output:
            ceilings="results/{device}/ceilings.parquet",
        log:
            "results/logs/ceilings/{device}.log",
        threads: 1
        resources:
            gpu=1,
            host=100,
        params:
            config=CONFIG_JSON,
        message:
            "Measure the ceilings of {GPU.name}"
        shell:
            "ladder ceilings --config-json {params.config:q} --builds results/build"
            " --out results/{wildcards.device} > {log}"
