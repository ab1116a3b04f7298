DRAWN = [*TABLES, "counters", "ceilings"]
if not GPU or SETTINGS.accuracy.use != "never":
    DRAWN.append("accuracy")


rule draw_figures:
    input:
        tables=expand("results/{{device}}/{table}.parquet", table=DRAWN),
        gpus="config/gpus.yaml",
        public="config/public.csv",
        code=drawing_code(),
    output:
        report(
            directory("results/{device}/figures"),
            patterns=["{figure,.+(?<!_single)}.svg"],
            caption="../report/figure.rst",
            category=topic_of_figure,
            labels=labels_of_figure,
        ),
    log:
        "results/logs/figures/{device}.log",
    threads: 4
    params:
        style=STYLE_JSON,
    message:
        "Draw the figures of {wildcards.device}"
    shell:
        "ladder figures results/{wildcards.device} --workers {threads}"
        " --style-json {params.style:q} > {log} 2>&1"


rule render_report:
    input:
        tables=expand("results/{{device}}/{table}.parquet", table=DRAWN),
        figures="results/{device}/figures",
        code=[
            *drawing_code(),
            *sorted((WORKFLOW / "ladder" / "report").glob("*.py")),
            *[
                WORKFLOW / "ladder" / f"{name}.py"
                for name in ("compare_counters", "special_values", "theory")
            ],
        ],
        templates=[
            *sorted((WORKFLOW / "report").glob("report.*")),
            WORKFLOW / "locale" / "zh.po",
        ],
    output:
        html=report(
            "results/{device}/report.html",
            caption="../report/page.rst",
            category="Report",
            labels={"figure": "Report with all tables", "GPU": "{device}"},
        ),
        markdown="results/{device}/report.md",
        summary="results/{device}/summary.pdf",
    log:
        "results/logs/report/{device}.log",
    params:
        language=SETTINGS.report.language,
    message:
        "Write the report of {wildcards.device}"
    shell:
        "ladder report results/{wildcards.device} --language {params.language} > {log} 2>&1"


# Named targets: `snakemake --cores 1 figures`, `snakemake --cores 1 publish`.
rule figures:
    input:
        f"results/{DEVICE}/figures",


# Published results are never the output of a rule: a fresh clone would want to make them again.
rule publish:
    input:
        f"results/{DEVICE}/report.html",
    log:
        f"results/logs/publish/{DEVICE}.log",
    params:
        device=DEVICE,
    message:
        "Copy results/{params.device} to results/published/{params.device}"
    shell:
        "ladder publish results/{params.device} > {log} 2>&1"
