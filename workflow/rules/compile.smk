rule plan_points:
    input:
        tuned=[str(TUNED)] if TUNED.exists() else [],
    output:
        plan="results/{device}/plan.parquet",
    log:
        "results/logs/plan/{device}.log",
    params:
        config=CONFIG_JSON,
        tuned=lambda wildcards, input: f"--tuned {input.tuned}" if input.tuned else "",
    message:
        "Plan the points of {wildcards.device}"
    shell:
        "ladder plan --config-json {params.config:q} {params.tuned} --out {output.plan} > {log} 2>&1"


# A compiler's refusal is a row of the record, with an empty CUBIN: one bad candidate must not end
# a sweep.
rule compile_kernel:
    input:
        source="kernels/{kernel}.cu",
        manifest="kernels/{kernel}.yaml",
        headers=HEADERS,
    output:
        record="results/build/{architecture}/{kernel}/{params}.parquet",
        cubin="results/build/{architecture}/{kernel}/{params}.cubin",
    log:
        "results/logs/compile/{architecture}/{kernel}/{params}.log",
    threads: 1
    resources:
        host=1,
    message:
        "Compile {wildcards.kernel} {wildcards.params} for {wildcards.architecture}"
    shell:
        "ladder compile {wildcards.kernel} --params {wildcards.params:q}"
        " --architecture {wildcards.architecture} --builds results/build > {log} 2>&1"
