# The fastest parameters on the GPU at hand: `snakemake --cores 1 tune`. Times go to the journal, where
# a sweep of the same sets finds them; the winners go to results/{device}/tuned.yaml, which no rule
# owns: each search replaces its own lines. The table of trials likewise keeps those of other sizes.
rule tune_kernel:
    input:
        source="kernels/{kernel}.cu",
        manifest="kernels/{kernel}.yaml",
        headers=HEADERS,
    output:
        trials=update("results/{device}/tune/{kernel}.parquet"),
    log:
        "results/logs/tune/{device}/{kernel}.log",
    threads: 4
    resources:
        gpu=1,
        host=100,
    params:
        config=CONFIG_JSON,
    message:
        "Search the parameters of {wildcards.kernel}"
    shell:
        "ladder tune {wildcards.kernel} --config-json {params.config:q} --workers {threads}"
        " --builds results/build --out results/{wildcards.device} > {log}"


rule tune:
    input:
        [
            f"results/{DEVICE}/tune/{name}.parquet"
            for name in SETTINGS.tune.kernels
            or [name for name, kernel in KERNELS.items() if kernel.manifest.tune]
        ],
