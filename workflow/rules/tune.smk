# The fastest parameters on the GPU at hand: `snakemake --cores 1 tune`. Times go to the journal, where
# a sweep of the same sets finds them; winners and trials go to results/{device}/tuned.yaml and tune/,
# which no rule owns: each search replaces its own lines, and one by hand must not count as this one.
rule tune_kernel:
    input:
        source="kernels/{kernel}.cu",
        manifest="kernels/{kernel}.yaml",
        headers=HEADERS,
    output:
        done=touch("results/{device}/tune/{kernel}.searched"),
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
            f"results/{DEVICE}/tune/{name}.searched"
            for name in SETTINGS.tune.kernels
            or [name for name, kernel in KERNELS.items() if kernel.manifest.tune]
        ],
