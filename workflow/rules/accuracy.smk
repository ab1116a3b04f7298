# How accurate the kernels are on other inputs than those of the checks, and what becomes of special
# values. Of every kernel one parameter set, in seconds.
if GPU and SETTINGS.accuracy.use != "never":

    rule measure_accuracy:
        input:
            # For its configuration; a new size or set of another section measures nothing anew.
            plan=ancient("results/{device}/plan.parquet"),
            builds=build_files("parquet", ARCHITECTURES),
            # After the times, whose clocks it must not disturb.
            runs=ancient("results/{device}/runs.parquet"),
        output:
            accuracy="results/{device}/accuracy.parquet",
        log:
            "results/logs/accuracy/{device}.log",
        threads: 1
        resources:
            gpu=1,
            host=100,
        params:
            settings=SETTINGS.accuracy.model_dump_json(),
        message:
            "Measure the accuracy on {GPU.name}"
        shell:
            "ladder accuracy --plan {input.plan} --builds results/build"
            " --out results/{wildcards.device} > {log}"
